from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.engine.linear import best_linear_mode
from shared.engine.loaded_model import LoadedModel, load_model


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
def _one_thread() -> Iterator[None]:
    """Tests of other workers need the other cores; who wants more threads says so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
