"""Recipes: which type every tensor gets, as data. Shipped ones by name, your own by file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.storage.gguf_header import TYPE_NAMES

FOLDER = Path(__file__).parent / "recipes"
TYPE_IDS = {name.lower(): type_id for type_id, name in TYPE_NAMES.items()}
_KEYS = {"name": str, "note": str, "base": str, "types": dict, "imatrix": bool}


class RecipeError(WorkbenchError):
    """A recipe is unreadable, or has a wrong key or value; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Which type every tensor gets.

    Attributes
    ----------
    base : str
        One of llama.cpp's mixtures, such as `q4_k_m`: it chooses the type of every tensor that no pattern names.
    types : mapping
        Regular expression, searched for in the tensor's name → ggml type; the first match wins. A tensor that llama.cpp
        never quantizes (norms, routers) keeps its type whatever matches.
    imatrix : bool
        Weigh errors by an importance matrix, computed over a calibration text if none is given.
    """

    name: str
    base: str
    types: Mapping[str, str] = field(default_factory=dict)
    imatrix: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.base.lower() not in file_types():
            raise RecipeError(f"base: no mixture {self.base!r}; llama.cpp's are: {', '.join(sorted(file_types()))}")
        for pattern, type_name in self.types.items():
            if not isinstance(pattern, str) or not isinstance(type_name, str):
                raise RecipeError(f"types: expected pattern: type, got {pattern!r}: {type_name!r}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise RecipeError(f"types: {pattern!r} is not a regular expression: {error}") from error
            if type_name.lower() not in TYPE_IDS:
                raise RecipeError(f"types: {pattern!r}: no ggml type {type_name!r}; such as q3_k, q4_k, q8_0, f16")
        if self.types and self.base.lower() in ("f16", "bf16", "f32"):
            raise RecipeError(f"types: llama.cpp ignores patterns when the base is {self.base}; use q8_0 or smaller")

    @property
    def file_type(self) -> int:
        """The base as llama.cpp's `llama_ftype`."""
        return file_types()[self.base.lower()]

    @property
    def rules(self) -> list[tuple[str, int]]:
        """Patterns and ggml type ids, in order."""
        return [(pattern, TYPE_IDS[name.lower()]) for pattern, name in self.types.items()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, in the form of a recipe file."""
        return {
            "name": self.name,
            "note": self.note,
            "base": self.base,
            "types": dict(self.types),
            "imatrix": self.imatrix,
        }


def file_types() -> dict[str, int]:
    """Llama.cpp's mixtures: name in lower case → `llama_ftype`."""
    import llama_cpp

    names = {n.removeprefix("LLAMA_FTYPE_"): getattr(llama_cpp, n) for n in dir(llama_cpp) if n.startswith("LLAMA_FT")}
    return {re.sub(r"^(MOSTLY|ALL)_", "", n).lower(): v for n, v in names.items() if re.match(r"MOSTLY_|ALL_", n)}


def shipped() -> dict[str, Path]:
    """Shipped recipes: name → file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def load_recipe(name: str | Path) -> Recipe:
    """A shipped recipe by its name, or one's own by its file (YAML).

    Raises
    ------
    RecipeError
        Naming the file, the key and what was expected.
    """
    import yaml

    path = shipped().get(str(name), Path(name))
    if not path.is_file():
        raise RecipeError(f"{name}: no such recipe; shipped are {', '.join(shipped())}, or pass a YAML file")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _from_dict(values, path.stem)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: {error}") from error
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None


def _from_dict(values: Any, name: str) -> Recipe:
    if not isinstance(values, dict):
        raise RecipeError(f"expected a mapping, got {values!r}")
    for key, value in values.items():
        if key not in _KEYS:
            raise RecipeError(f"unknown key {key!r}; known: {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise RecipeError(f"{key}: expected {_KEYS[key].__name__}, got {value!r}")
    if "base" not in values:
        raise RecipeError("base: a mixture of llama.cpp is needed, such as q4_k_m")
    return Recipe(**{"name": name, **values})
