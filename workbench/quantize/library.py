"""The functions of libles that quantize and collect importance matrices, with their types."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any

import numpy as np

from workbench.session import library as base_library
from workbench.session import native_error


class _Rows(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("importance", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("per_matrix", ctypes.c_int64),
        ("type", ctypes.c_int),
    )


class SumsEntry(ctypes.Structure):
    """`les_imatrix_sums`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("width", ctypes.c_int64),
        ("n_matrix", ctypes.c_int64),
        ("n_count", ctypes.c_int64),
        ("sums", ctypes.POINTER(ctypes.c_double)),
        ("counts", ctypes.POINTER(ctypes.c_int64)),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Libles with the signatures of this package's functions."""
    lib = base_library()
    handle, count = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "les_imatrix_pass": (count, [handle, ctypes.POINTER(ctypes.c_int32), count]),
        "les_imatrix_entry": (count, [handle, count, ctypes.POINTER(SumsEntry)]),
        "les_quantize_types": (ctypes.c_char_p, [ctypes.c_char_p]),
        "les_convert_rows": (
            count,
            [ctypes.POINTER(_Rows), count, ctypes.c_void_p, count, ctypes.c_char_p, ctypes.c_size_t],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def quantize_types(
    model: str, *, file_type: int, rules: list[tuple[str, int]], imatrix: bool
) -> tuple[dict[str, int], list[tuple[str, str, str]]]:
    """What llama.cpp's quantizer would make of a file.

    Returns
    -------
    dict
        Tensor → ggml type.
    list of tuple
        Tensors that cannot have the type chosen for them: name, that type, the type given instead.

    Raises
    ------
    ModelFileError
        When llama.cpp refuses the file.
    """
    job = {"model": model, "ftype": file_type, "types": rules, "imatrix": imatrix}
    answer = json.loads(library().les_quantize_types(json.dumps(job).encode()))
    if "error" in answer:
        raise native_error(answer["error"])
    return answer["types"], [(name, wanted.upper(), given.upper()) for name, wanted, given in answer["fallbacks"]]


def convert_rows(
    data: bytes,
    *,
    from_type: int,
    to_type: int,
    shape: tuple[int, int],
    first: int,
    per_matrix: int,
    importance: np.ndarray | None,
    to_bytes: int,
    threads: int,
) -> bytes:
    """Rows in another ggml type, as llama.cpp's quantizer makes them.

    Parameters
    ----------
    shape
        Rows and their width.
    first
        The first row's number in its tensor; every `per_matrix` rows are one expert's matrix.
    importance
        float32 [matrices, width], or None for uniform weights.
    to_bytes
        Size of the result.

    Raises
    ------
    WorkbenchError
        When the rows hold no numbers, or cannot be represented; the message does not name the tensor.
    """
    weights = None if importance is None else importance.ctypes.data
    rows = _Rows(
        ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), weights, shape[0], shape[1], first, per_matrix, from_type
    )
    out, error = ctypes.create_string_buffer(to_bytes), ctypes.create_string_buffer(512)
    if library().les_convert_rows(ctypes.byref(rows), to_type, out, threads, error, len(error)) != 0:
        raise native_error(error.value.decode(errors="replace"))
    return out.raw
