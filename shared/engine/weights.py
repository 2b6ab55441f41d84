"""The model's weights as one mapped file in the cache directory, made on first use."""

from collections.abc import Iterator
from pathlib import Path

import torch

from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import ModelConfig
from shared.engine.kv_layout import TORCH_DTYPES, DtypeName
from shared.engine.model_weights import EMBEDDINGS, LM_HEAD, model_specs, panel_specs
from shared.engine.panels import to_panels
from shared.engine.weight_sources import read_weights
from shared.engine.weights_file import MappedWeights, checked, write_weights
from shared.native.file_lock import file_lock

# Raised when the file's content would differ for the same checkpoint.
_FILE_VERSION = 1


def load_weights(
    source: ModelSource,
    config: ModelConfig,
    dtype: DtypeName,
    fingerprint: str,
    cache_dir: Path,
    *,
    in_panels: bool = False,
) -> MappedWeights:
    """Maps the dequantised weights. One process writes them; others wait for it."""
    folder = cache_dir / "weights"
    folder.mkdir(parents=True, exist_ok=True)
    path = (
        folder
        / f"{fingerprint}-{dtype}{'-panels' if in_panels else ''}-v{_FILE_VERSION}.safetensors"
    )
    if not path.is_file():
        with file_lock(path.with_suffix(".lock")):
            if not path.is_file():
                _write(path, source, config, dtype, in_panels)
    return MappedWeights(path)


def _write(
    path: Path, source: ModelSource, config: ModelConfig, dtype: DtypeName, in_panels: bool
) -> None:
    torch_dtype = TORCH_DTYPES[dtype]
    unfinished = path.with_suffix(".unfinished")
    specs = list(model_specs(config, torch_dtype))
    tensors = read_weights(source, config, torch_dtype)
    if in_panels:
        tensors = _panels(config, checked(specs, tensors))
        specs = panel_specs(config, specs)
    write_weights(unfinished, specs, tensors)
    # Renamed into place: whoever sees the name sees a whole file.
    unfinished.replace(path)


def _panels(
    config: ModelConfig, tensors: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """In the order of panel_specs()."""
    tied: torch.Tensor | None = None
    for name, tensor in tensors:
        is_matrix = tensor.dim() == 2 and name != EMBEDDINGS
        yield name, to_panels(tensor) if is_matrix else tensor
        if name == EMBEDDINGS and config.tied_embeddings:
            tied = tensor
    if tied is not None:
        yield LM_HEAD, to_panels(tied)
