"""The ablation ladder: rungs, schedule, rows, table, figure, diagnosis."""

from __future__ import annotations
