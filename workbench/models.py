"""Model names: a local GGUF, or one on the Hugging Face hub as `owner/repo:file.gguf`."""

from __future__ import annotations

import re
from pathlib import Path

from workbench.errors import ModelFileError

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[\w./-]+\.gguf)")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def resolve_model(name: str | Path) -> Path:
    """The local file of a model, downloading it (all shards) from the hub if `name` says so.

    Parameters
    ----------
    name
        A path, or `owner/repo:file.gguf`. Downloads land in the hub's own cache and resume.

    Raises
    ------
    ModelFileError
        If there is no such file, or the hub cannot be reached and its cache does not hold the file.
    """
    path = Path(name)
    if path.is_file():
        return path
    match = _HUB.fullmatch(str(name))
    if not match:
        raise ModelFileError(
            f"{name}: no such file; pass a GGUF, or owner/repo:file.gguf for one on the Hugging Face hub"
        )
    return _download(match["repo"], match["file"])


def _download(repo: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    shard = _SHARD.search(file)
    count = int(shard[2]) if shard else 1
    files = [_SHARD.sub(f"-{i:05d}-of-{count:05d}.gguf", file) for i in range(1, count + 1)] if shard else [file]
    try:
        paths = [Path(hf_hub_download(repo, f)) for f in files]
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelFileError(f"{repo}:{file}: not in the local hub cache and not downloadable ({error})") from error
    return paths[0]
