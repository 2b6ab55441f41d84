"""The model's weights as one mapped file in the cache directory, made on first use."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import ModelConfig
from shared.engine.kv_layout import TORCH_DTYPES, DtypeName
from shared.engine.model_weights import model_specs
from shared.engine.weight_sources import read_weights
from shared.engine.weights_file import MappedWeights, write_weights

# Raised when the file's content would differ for the same checkpoint.
_FILE_VERSION = 1


def load_weights(
    source: ModelSource, config: ModelConfig, dtype: DtypeName, fingerprint: str, cache_dir: Path
) -> MappedWeights:
    """Maps the dequantised weights. One process writes them; others wait for it."""
    folder = cache_dir / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fingerprint}-{dtype}-v{_FILE_VERSION}.safetensors"
    if not path.is_file():
        with file_lock(path.with_suffix(".lock")):
            if not path.is_file():
                _write(path, source, config, dtype)
    return MappedWeights(path)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when its holder dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, source: ModelSource, config: ModelConfig, dtype: DtypeName) -> None:
    torch_dtype = TORCH_DTYPES[dtype]
    unfinished = path.with_suffix(".unfinished")
    write_weights(
        unfinished, model_specs(config, torch_dtype), read_weights(source, config, torch_dtype)
    )
    # Renamed into place: whoever sees the name sees a whole file.
    unfinished.replace(path)
