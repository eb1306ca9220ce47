"""Split the teacher's GGUF into raw parts with a JSON index, and rebuild its tokenizer.

python -m workbench.demo.recipe.pack_teacher SmolLM2-135M-Instruct.Q4_1.gguf OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def pack(source: Path, out: Path, *, n_parts: int = 2) -> None:
    """Write `partN/teacher_part_N.bin`, `part0/teacher_index.json` and `part0/teacher_tokenizer.json`."""
    reader = gguf.GGUFReader(source)
    index = [
        {
            "name": t.name,
            "shape": [int(n) for n in t.shape],
            "type": int(t.tensor_type),
            "offset": int(t.data_offset),
            "n_bytes": int(t.n_bytes),
        }
        for t in reader.tensors
    ]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in reader.fields["tokenizer.ggml.merges"].contents()]
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = int(gguf.TokenType.CONTROL)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t, kind in zip(tokens, types, strict=False) if kind == control]
    )
    data = source.read_bytes()
    step = -(-len(data) // n_parts)
    for part in range(n_parts):
        folder = out / f"part{part}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"teacher_part_{part}.bin").write_bytes(data[part * step : (part + 1) * step])
    (out / "part0" / "teacher_index.json").write_text(json.dumps(index))
    tokenizer.save(str(out / "part0" / "teacher_tokenizer.json"))


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
