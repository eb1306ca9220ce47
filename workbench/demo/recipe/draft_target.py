"""Any target that llama.cpp can tap, read from its GGUF by llama.cpp itself, and a recording of it to train from."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.demo.recipe.model import Shape
from workbench.demo.recipe.prompts import teacher_prompt
from workbench.errors import ModelFileError, UnsupportedArchitectureError
from workbench.session import Session, library
from workbench.storage.gguf_file import GgufFile, open_gguf

TAPPED = (
    "qwen3moe",
    "qwen35moe",
    "qwen3next",
    "gpt-oss",
    "llama",
    "lfm2moe",
    "minimax-m2",
    "nemotron_h_moe",
    "bailingmoe3",
    "mimo2",
)
"""Architectures whose layer inputs the runtime's dspark mode can read."""

N_BATCH = 128
MAX_HEAD_DIM = 128
# exported by libllama from its staging header, hence with C++ names
SET_TAP = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
GET_TAP = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"


def target_shape(file: GgufFile) -> Shape:
    """Return the sizes a drafter shares with its target; those of the target's own layers are left at 0.

    Raises
    ------
    UnsupportedArchitectureError
        If llama.cpp cannot tap the architecture.
    """
    arch = file.architecture.removeprefix("les-")
    if arch not in TAPPED:
        raise UnsupportedArchitectureError(f"{file.path}: {arch} has no taps; DSpark needs one of {', '.join(TAPPED)}")
    width, heads = file.get_arch("embedding_length"), file.get_arch("attention.head_count")
    head_dim = file.get_arch("attention.key_length", width // (max(heads) if isinstance(heads, list) else heads))
    return Shape(
        n_vocab=len(file.get("tokenizer.ggml.tokens")),
        n_layer=file.get_arch("block_count") - file.get_arch("nextn_predict_layers", 0),
        n_embd=width,
        head_dim=min(head_dim, MAX_HEAD_DIM),
        n_ctx=file.get_arch("context_length"),
        **dict.fromkeys(("n_head", "n_head_kv", "n_expert", "n_expert_used", "n_ff"), 0),
    )


def mask_token(file: GgufFile) -> int:
    """Return the token that fills a block: the target's mask token, else its last control or unused one."""
    own = file.get("tokenizer.ggml.mask_token_id")
    if own is not None:
        return int(own)
    kinds = file.get("tokenizer.ggml.token_type") or []
    spare = [i for i, kind in enumerate(kinds) if kind in (gguf.TokenType.CONTROL, gguf.TokenType.UNUSED)]
    return spare[-1] if spare else len(file.get("tokenizer.ggml.tokens")) - 1


def tensor(file: GgufFile, name: str) -> np.ndarray | None:
    """Return a matrix of the file, dequantized to float32 in [out, in] order, or None where there is none."""
    for shard, entry in file.tensors():
        if entry.name == name:
            at = shard.header.data_start + entry.offset
            raw = np.memmap(shard.path, np.uint8, "r", at, (entry.n_bytes,))
            rows = raw.reshape(*entry.shape[:0:-1], -1)
            return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(entry.type_id))
    return None


def embedding_and_head(file: GgufFile) -> tuple[Tensor, Tensor]:
    """Return the frozen token embedding and output head; tied ones are the same tensor."""
    embedding = tensor(file, "token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path}: has no token_embd.weight")
    head, table = tensor(file, "output.weight"), torch.from_numpy(embedding.copy())
    return table, table if head is None else torch.from_numpy(head.copy())


class GgufTarget:
    """A target in llama.cpp: writes text and shows, for every token, the tapped layers' inputs and the logits.

    Parameters
    ----------
    taps
        Layer ids whose input is read, as in the drafter's `target_layers`.
    n_rows, length
        Most sequences written side by side, and the tokens of each.
    toggles
        Further fields of `RunConfig`: `experts="flash", cache_slots=16` for a target larger than memory.
    """

    def __init__(self, path: Path, taps: Sequence[int], *, n_rows: int, length: int, **toggles: Any) -> None:
        shape = target_shape(open_gguf(path))
        if not taps or min(taps) < 0 or max(taps) >= shape.n_layer:
            raise ValueError(f"taps {list(taps)}: the target's layers are 0 … {shape.n_layer - 1}")
        self.taps, self.n_embd = tuple(taps), shape.n_embd
        self.n_batch = max(N_BATCH, n_rows)
        sizes: dict[str, Any] = {
            "n_batch": self.n_batch,
            "n_ubatch": self.n_batch,
            "n_seq_max": n_rows,
            "n_ctx": n_rows * length,
        }
        self.session = Session(
            path, **{"experts": "resident", "telemetry": "off", "logits_hash": False, **toggles}, **sizes
        )
        import llama_cpp

        llama = llama_cpp.llama_cpp._lib
        self._get, switch = getattr(llama, GET_TAP), getattr(llama, SET_TAP)
        self._get.restype = ctypes.POINTER(ctypes.c_float)
        self._get.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        switch.restype, switch.argtypes = None, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        self._context = library().les_context(self.session._handle)
        for tap in taps:
            switch(self._context, tap, True)

    def __enter__(self) -> GgufTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def prompts(self, seed: int, file: Path | None = None) -> Iterator[list[int]]:
        """Yield prompts without end, as token ids: lines of `file`, or the recipe's own requests."""
        rng = random.Random(seed)
        lines = [line for line in file.read_text().splitlines() if line.strip()] if file else []
        chat = "tokenizer.chat_template" in self.session.metadata
        while True:
            text = rng.choice(lines) if lines else teacher_prompt(rng).request
            yield self.session.tokenize(self.session.chat_prompt([{"role": "user", "content": text}]) if chat else text)

    def write(
        self, prompts: Iterator[list[int]], length: int, heat: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Write as many sequences as `heat` has temperatures (0: greedy); one that ends goes on with the next prompt.

        Returns
        -------
        tokens
            [n, length].
        spans
            [n, 2]: where each one's first own text begins, and ends.
        """
        n = len(heat)
        queue = [next(prompts)[: length // 2] for _ in range(n)]
        spans = np.array([[len(prompt), length] for prompt in queue])
        tokens = np.zeros((n, length), np.int64)
        hot = np.flatnonzero(heat)
        self.session.clear()
        for at in range(length):
            if at:
                logits = self.session.evaluate(tokens[:, at - 1].tolist(), [at - 1] * n, range(n), [True] * n)
                logits[hot] += heat[hot, None] * rng.gumbel(size=(len(hot), logits.shape[1]))
                tokens[:, at] = logits.argmax(1)
            for row, waiting in enumerate(queue):
                if waiting:
                    tokens[row, at] = waiting.pop(0)
                elif self.session.is_end(int(tokens[row, at])):
                    spans[row, 1] = min(spans[row, 1], at)
                    waiting.extend(next(prompts)[: length // 2])
        return tokens, spans

    def read(self, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated tap features [T, m * D] and logits [T, V] of one sequence, float32."""
        features, logits = [], []
        self.session.clear()
        for start in range(0, len(ids), self.n_batch):
            part = [int(i) for i in ids[start : start + self.n_batch]]
            n = len(part)
            logits.append(self.session.evaluate(part, range(start, start + n), [0] * n, [True] * n))
            rows = [np.ctypeslib.as_array(self._get(self._context, tap), (n, self.n_embd)) for tap in self.taps]
            features.append(np.concatenate(rows, -1))
        return np.concatenate(features), np.concatenate(logits)


def record(
    model: Path,
    taps: Sequence[int],
    folder: Path,
    *,
    batches: int,
    rows: int,
    length: int,
    keep: int,
    seed: int,
    prompts: Path | None = None,
    **toggles: Any,
) -> None:
    """Let a target write `batches` × `rows` sequences and store what a drafter needs of them in `folder`.

    Even rows are greedy, odd ones at temperature 0.7. Features are stored as bfloat16, and of each distribution the
    `keep` likeliest tokens. A finished recording of the same settings is left as it is, without loading the target.
    """
    shape, n = target_shape(open_gguf(model)), batches * rows
    keep = min(keep, shape.n_vocab)
    facts = {"model": model.name, "taps": list(taps), "rows": n, "length": length, "keep": keep, "seed": seed}
    facts["prompts"] = prompts.name if prompts else None
    note = folder / "recording.json"
    if note.exists() and json.loads(note.read_text()) == facts:
        return
    folder.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)

    def array(name: str, kind: type, *size: int) -> np.memmap:
        return np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (n, *size))

    tokens, spans = array("tokens", np.int32, length), array("spans", np.int32, 2)
    features = array("features", np.int16, length, len(taps) * shape.n_embd)
    kept, log_p = array("kept", np.int32, length, keep), array("log_p", np.float16, length, keep)
    heat = np.where(np.arange(rows) % 2, np.float32(0.7), np.float32(0))
    with GgufTarget(model, taps, n_rows=rows, length=length, **toggles) as target:
        source, rng = target.prompts(seed, prompts), np.random.default_rng(seed)
        for at in range(0, n, rows):
            tokens[at : at + rows], spans[at : at + rows] = target.write(source, length, heat, rng)
        for row in range(n):
            seen, logits = target.read(tokens[row])
            features[row] = torch.from_numpy(seen).bfloat16().view(torch.int16).numpy()
            values, ids = torch.from_numpy(logits).log_softmax(-1).topk(keep)
            kept[row], log_p[row] = ids.numpy(), values.numpy()
    for written in (tokens, spans, features, kept, log_p):
        written.flush()
    note.write_text(json.dumps(facts))


class Recording:
    """What `record` stored, and the target's frozen embedding and head."""

    def __init__(self, folder: Path, model: Path, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        names = ("tokens", "spans", "features", "kept", "log_p")
        self.tokens, self.spans, self.features, self.kept, self.log_p = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in names
        )
        self.embedding, self.output = (w.to(device, dtype) for w in embedding_and_head(open_gguf(model)))

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits of normalised hidden states."""
        return F.linear(hidden, self.output)

    def whole(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return tokens [B, T] and features [B, T, m * D] of some rows."""
        ids = torch.from_numpy(self.tokens[rows]).to(self.device).long()
        return ids, torch.from_numpy(self.features[rows]).view(torch.bfloat16).to(self.device, self.dtype)

    def look(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return tokens, features, and at positions `slots` [A, block] the kept tokens and their probabilities."""
        index = rows.cpu().numpy()
        where = (index[:, None, None], slots.cpu().numpy()[None])
        kept = torch.from_numpy(self.kept[where]).to(self.device).long()
        return *self.whole(index), kept, torch.from_numpy(self.log_p[where]).to(self.device).float().exp()
