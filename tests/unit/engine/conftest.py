from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.linear import best_linear_mode
from shared.engine.loaded_model import LoadedModel, load_model


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-cache")


@pytest.fixture(scope="session")
def tiny(engine_cache: Path) -> LoadedModel:
    return load_model("dummy:tiny", cache_dir=engine_cache, threads=1)


@pytest.fixture(scope="session")
def tiny_small_blocks(engine_cache: Path) -> LoadedModel:
    return load_model("dummy:tiny", cache_dir=engine_cache, threads=1, block_tokens=64)


@pytest.fixture(scope="session")
def tiny_bf16(engine_cache: Path) -> LoadedModel:
    return load_model("dummy:tiny", dtype="bfloat16", cache_dir=engine_cache, threads=1)


@pytest.fixture(scope="session")
def tiny_torch(engine_cache: Path) -> LoadedModel:
    """On torch's own kernels, as where ours cannot be built."""
    mode = best_linear_mode(torch.float32)
    return load_model("dummy:tiny", cache_dir=engine_cache, threads=1, linear_mode=mode)


@pytest.fixture(scope="session")
def tiny_torch_small_blocks(engine_cache: Path) -> LoadedModel:
    return load_model(
        "dummy:tiny",
        cache_dir=engine_cache,
        threads=1,
        block_tokens=64,
        linear_mode=best_linear_mode(torch.float32),
    )


@pytest.fixture(scope="session")
def tiny_torch_bf16(engine_cache: Path) -> LoadedModel:
    return load_model(
        "dummy:tiny",
        dtype="bfloat16",
        cache_dir=engine_cache,
        threads=1,
        linear_mode=best_linear_mode(torch.bfloat16),
    )


@pytest.fixture(autouse=True)
def _threads_stay_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
