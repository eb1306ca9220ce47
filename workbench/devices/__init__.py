"""Runs on other machines: targets, samples of power and temperature, recorded runs without private details."""

from __future__ import annotations
