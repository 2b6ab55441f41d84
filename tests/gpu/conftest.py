"""Models on a CUDA device. Without one, every test here is skipped and says why."""

from pathlib import Path

import pytest

from shared.engine.device import compute_device
from shared.engine.errors import EngineError
from shared.engine.kv_layout import DtypeName
from shared.engine.loaded_model import LoadedModel, Mode, load_model


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    try:
        compute_device("cuda", is_exact=True)
    except EngineError as error:
        pytest.skip(str(error))
    return "cuda"


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-cache")


class Models:
    """The same dummy model on each device."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def load(self, device: str, dtype: DtypeName = "float32", mode: Mode = "exact") -> LoadedModel:
        return load_model(
            "dummy:small", dtype=dtype, mode=mode, cache_dir=self._cache_dir, device=device
        )


@pytest.fixture(scope="session")
def models(device: str, cache_dir: Path) -> Models:
    return Models(cache_dir)
