"""Loads a model and says what its KV depends on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import ModelConfig
from shared.engine.kv_layout import DtypeName, KvLayout
from shared.engine.model import LlamaModel
from shared.kv.kv_format import KvFormat

Mode = Literal["exact", "fast"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    source: ModelSource
    config: ModelConfig
    model: LlamaModel
    layout: KvLayout
    grid_tokens: int
    kv_format: KvFormat


def load_model(
    model: str,
    *,
    dtype: DtypeName = "float32",
    mode: Mode = "exact",
    cache_dir: Path,
    threads: int = 1,
    block_tokens: int | None = None,
) -> LoadedModel:
    raise NotImplementedError
