"""Evaluation: lm-eval in process over `Session`, and the lossless ladder with its statistics.

`stats` and `verdict` are pure; `adapter` and `harness` bring lm-eval in; `compare` runs the ladder.
"""

from __future__ import annotations
