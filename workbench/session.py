"""`Session`: a model, its toggles, and a generator of telemetry records; decoding itself happens in libles."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np

from workbench import native_paths
from workbench.config import RunConfig
from workbench.errors import (
    BY_TAG,
    RunError,
    ToggleError,
    WorkbenchError,
)


def native_error(text: str) -> WorkbenchError:
    """The exception for a native message of the form `tag: text`."""
    tag, _, what = text.partition(": ")
    return BY_TAG[tag](what) if tag in BY_TAG else RunError(text)


@functools.cache
def library() -> ctypes.CDLL:
    """Libles, loaded after llama_cpp so that both run on the same libllama."""
    import llama_cpp  # noqa: F401

    lib = ctypes.CDLL(str(native_paths.library()))
    handle, text, count = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    ints = ctypes.POINTER(ctypes.c_int32)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "les_open": (handle, [text, ctypes.c_char_p, ctypes.c_size_t]),
        "les_close": (None, [handle]),
        "les_begin": (count, [handle, ints, count, count, ints, count]),
        "les_next": (count, [handle]),
        "les_eval": (count, [handle, count, ints, ints, ints, ints, ctypes.POINTER(ctypes.c_int8)]),
        "les_clear": (count, [handle, count]),
        "les_logits": (ctypes.POINTER(ctypes.c_float), [handle, ctypes.POINTER(count), ctypes.POINTER(count)]),
        "les_next_token": (ctypes.c_int32, [handle]),
        "les_interrupt": (None, [handle]),
        "les_header": (text, [handle]),
        "les_take_lines": (text, [handle]),
        "les_finish": (text, [handle]),
        "les_error": (text, [handle]),
        "les_model": (handle, [handle]),
        "les_context": (handle, [handle]),
        "les_machine": (text, [text]),
        "les_iobench": (text, [text]),
        "les_log_level": (None, [count]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.les_log_level(1)
    return lib


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


class Session:
    """One loaded model with fixed toggles.

    Parameters
    ----------
    model
        A GGUF file (first shard of a split one, or an expert-contiguous one).
    **toggles
        Fields of `RunConfig`.

    Raises
    ------
    ToggleError, ModelFileError, UnsupportedArchitectureError
        Before anything is loaded, where that can be known.

    Examples
    --------
    >>> with Session("model.gguf", experts="flash", lookahead="router", cache_slots=16) as s:  # doctest: +SKIP
    ...     for record in s.generate("Once upon a time", n_predict=32):
    ...         print(record["text"], record["stall_ns"])
    """

    def __init__(self, model: str | Path, config: RunConfig | None = None, **toggles: Any) -> None:
        if config is not None and toggles:
            raise ToggleError("pass either a RunConfig or toggles, not both")
        self.model_path = Path(model)
        self.config = config or RunConfig.from_dict(toggles)
        self._lib = library()
        job = json.dumps({"model": str(model), "config": self.config.to_dict()})
        error = ctypes.create_string_buffer(4096)
        self._handle = self._lib.les_open(job.encode(), error, len(error))
        if not self._handle:
            raise native_error(error.value.decode(errors="replace"))
        self.header: dict[str, Any] = json.loads(self._lib.les_header(self._handle))
        self._lib.les_take_lines(self._handle)
        self.end: dict[str, Any] | None = None
        self.bytes_read = 0
        self._generations = 0  # begun; the latest may be under way
        self._generating = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; safe to call twice. A generation under way ends, with its end record in `end`."""
        if self._handle:
            self._finish(self._generations)
            self._lib.les_close(self._handle)
            self._handle = None

    @property
    def _open(self) -> Any:
        if not self._handle:
            raise RunError("this session is closed; open a new one")
        return self._handle

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary."""
        return int(self.header["model"]["n_vocab"])

    @functools.cached_property
    def metadata(self) -> dict[str, str]:
        """The model file's metadata, scalar keys as text."""
        import llama_cpp

        model, buffer, found = self._llama_model, ctypes.create_string_buffer(1 << 16), {}
        for i in range(llama_cpp.llama_model_meta_count(model)):
            llama_cpp.llama_model_meta_key_by_index(model, i, buffer, len(buffer))
            key = buffer.value.decode(errors="replace")
            llama_cpp.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer))
            found[key] = buffer.value.decode(errors="replace")
        return found

    @property
    def _llama_model(self) -> Any:
        return self._lib.les_model(self._open)

    @property
    def _vocab(self) -> Any:
        import llama_cpp

        return llama_cpp.llama_model_get_vocab(self._llama_model)

    @property
    def bos(self) -> int | None:
        """The token that begins a text, or None where the file names none (llama.cpp would make one up)."""
        return self._named_token("bos")

    @property
    def eos(self) -> int | None:
        """The token that ends a text, or None where the file names none."""
        return self._named_token("eos")

    def _named_token(self, name: str) -> int | None:
        token = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if token is None else int(token)

    def is_end(self, token: int) -> bool:
        """Whether generation ends at this token."""
        import llama_cpp

        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of `text`."""
        import llama_cpp

        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), add_bos, special)
        if n < 0:
            raise RunError("this model carries no usable tokenizer; pass token ids")
        return list(ids[:n])

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Bytes of the tokens' text (a token may end inside a character)."""
        import llama_cpp

        piece, out = ctypes.create_string_buffer(512), b""
        for token in tokens:
            n = llama_cpp.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, False)
            out += piece.raw[: max(0, n)]
        return out

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        """Render messages with the model's own chat template.

        Raises
        ------
        RunError
            If the file carries no template.
        """
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self.metadata.get("tokenizer.chat_template")
        if not template:
            raise RunError(f"{self.model_path}: the file carries no chat template; pass a plain prompt")
        eos = self.detokenize([int(self.metadata.get("tokenizer.ggml.eos_token_id", 0))]).decode(errors="replace")
        formatter = Jinja2ChatFormatter(template=template, eos_token=eos, bos_token="")
        return str(formatter(messages=cast(Any, messages)).prompt)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = 64,
        force_tokens: Sequence[int] | None = None,
        ignore_eos: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Generate, yielding one telemetry record per decode call.

        A record is the telemetry record of the call; `text` is that of the token it chose (whole characters only).
        At levels `layer` and `io` it carries `layers` and `ios`.
        The last token is chosen but not fed. After the last record `self.end` holds the
        end record. Leaving the loop early, interrupting it, or beginning another generation ends the run cleanly.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise ToggleError("the prompt is empty: nothing to predict from")
        forced = _ints(force_tokens) if force_tokens else None
        count = len(force_tokens) if force_tokens else n_predict
        self._finish(self._generations)
        self.end = None
        if self._lib.les_begin(self._open, _ints(tokens), len(tokens), count, forced, int(ignore_eos)) != 0:
            raise self._error()
        self._generations += 1
        self._generating = True
        mine = self._generations
        try:
            while (status := self._lib.les_next(self._open)) == 1:
                yield self._take_record()
                if mine != self._generations:
                    raise RunError("another generation was begun on this session, which ended this one")
            if status < 0:
                raise self._error()
        finally:
            self._finish(mine)

    def _finish(self, generation: int) -> None:
        """End a generation, unless it has ended: a notebook keeps an interrupted cell's generator for a while."""
        if self._handle and self._generating and generation == self._generations:
            self._generating = False
            self.end = json.loads(self._lib.les_finish(self._handle))
            self._lib.les_take_lines(self._handle)

    def _error(self) -> WorkbenchError:
        return native_error(self._lib.les_error(self._open).decode(errors="replace"))

    def _take_record(self) -> dict[str, Any]:
        lines = [json.loads(line) for line in self._lib.les_take_lines(self._open).splitlines()]
        record: dict[str, Any] = lines[0] if lines else {"t": "tok", "next": self._lib.les_next_token(self._open)}
        if len(lines) > 1:
            record["layers"] = [r for r in lines if r["t"] == "layer"]
            record["ios"] = [r for r in lines if r["t"] == "io"]
        return record

    @property
    def logits(self) -> np.ndarray:
        """Logits of the last decode call, float32 [n_rows, n_vocab] (a copy)."""
        rows, vocab = ctypes.c_int(), ctypes.c_int()
        data = self._lib.les_logits(self._open, ctypes.byref(rows), ctypes.byref(vocab))
        if rows.value == 0:
            return np.empty((0, vocab.value), np.float32)
        return np.ctypeslib.as_array(data, shape=(rows.value, vocab.value)).copy()

    def evaluate(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int | range], want: Sequence[bool]
    ) -> np.ndarray:
        """Decode one batch of any sequences; logits of the wanted tokens, float32 [sum(want), n_vocab].

        A token may belong to several sequences, given as a range: those begin alike and are computed once.
        `bytes_read` counts what these calls read from flash, where telemetry is on.
        """
        wanted = (ctypes.c_int8 * len(want))(*[int(w) for w in want])
        spans = [s if isinstance(s, range) else range(s, s + 1) for s in sequences]
        first, count = _ints([s.start for s in spans]), _ints([len(s) for s in spans])
        if self._lib.les_eval(self._open, len(tokens), _ints(tokens), _ints(positions), first, count, wanted) != 0:
            raise self._error()
        self.bytes_read += self._take_record().get("bytes") or 0
        return self.logits

    def clear(self, sequence: int = -1) -> None:
        """Forget a sequence's context; -1 forgets all."""
        self._lib.les_clear(self._open, sequence)
