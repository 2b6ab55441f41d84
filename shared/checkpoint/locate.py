"""Finds a model by what a user may write for it. Never reads weights, never imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ModelKind = Literal["gguf", "hf", "dummy"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    name: str  # the name it is served under by default
    kind: ModelKind
    path: Path | None = None  # the GGUF file or the Hugging Face folder
    preset: str | None = None  # of a dummy model


def locate(model: str) -> ModelSource:
    """The source of `model`: the packaged model's name, a GGUF file, a Hugging Face folder,
    `dummy:<preset>` or a hub name."""
    raise NotImplementedError(model)
