"""Model names: local files, and the hub's own cache without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench import ModelFileError
from workbench.models import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as the hub client lays it out, with one sharded model; no network."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repo = tmp_path / "models--someone--some-moe-GGUF"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    for name in ("single.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "half-00001-of-00002.gguf"):
        (snapshot / name).write_bytes(name.encode())
    return snapshot


def test_a_local_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    assert resolve_model(path) == path


def test_a_hub_file_comes_from_the_cache(hub: Path) -> None:
    assert resolve_model("someone/some-moe-GGUF:single.gguf") == hub / "single.gguf"


def test_all_shards_are_fetched(hub: Path) -> None:
    assert resolve_model("someone/some-moe-GGUF:big-00001-of-00002.gguf") == hub / "big-00001-of-00002.gguf"
    with pytest.raises(ModelFileError, match="half-00001-of-00002"):
        resolve_model("someone/some-moe-GGUF:half-00001-of-00002.gguf")


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(ModelFileError, match="owner/repo:file.gguf"):
        resolve_model("nowhere.gguf")
