"""A stable name of the exact weights. Hashes each file once, then remembers it."""

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from shared.checkpoint.dummy import DUMMY_REVISION, dummy_preset
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.locate import ModelSource


def default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "moonpool"


def weights_fingerprint(source: ModelSource, cache_dir: Path | None = None) -> str:
    """Equal on every host for equal bytes, whatever the path."""
    match source.kind:
        case "dummy":
            preset = asdict(dummy_preset(source.preset or ""))
            described = f"dummy {DUMMY_REVISION} " + json.dumps(preset, sort_keys=True)
        case "gguf":
            described = "gguf " + _file_digest(source.file_path, cache_dir)
        case "hf":
            files = sorted(source.file_path.glob("*.safetensors"))
            if not files:
                raise CheckpointError(f"{source.file_path}: no *.safetensors file")
            files.append(source.file_path / "config.json")
            digests = [(file.name, _file_digest(file, cache_dir)) for file in files]
            described = "hf " + json.dumps(digests)
    return hashlib.sha256(described.encode()).hexdigest()[:32]


def _file_digest(path: Path, cache_dir: Path | None) -> str:
    """A file is taken as unchanged while its path, size and time of change are."""
    stat = path.stat()
    state = f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}"
    folder = (cache_dir or default_cache_dir()) / "digests"
    remembered = folder / hashlib.sha256(state.encode()).hexdigest()[:32]
    if remembered.is_file():
        return remembered.read_text(encoding="ascii")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that another process never reads half of it.
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="ascii") as file_out:
        file_out.write(digest)
    Path(file_out.name).replace(remembered)
    return digest
