"""Values that others report, as data files that name their source; never measured here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

REPORTED = "reported"


@cache
def article() -> dict[str, Any]:
    """The LES article's values (`article.yaml`)."""
    import yaml

    values: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "article.yaml").read_text(encoding="utf-8"))
    return values
