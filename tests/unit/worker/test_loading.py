"""What a worker says when it cannot load its model."""

from pathlib import Path
from typing import Any

import pytest

from shared.runtime.errors import ServiceError
from shared.worker.instance import WorkerService
from shared.worker.settings import WorkerSettings


async def test_a_cache_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    service = WorkerService(WorkerSettings(model="dummy:tiny", cache_dir=no_folder), "prefill")
    context: Any = None
    try:
        with pytest.raises(ServiceError, match=f"MOONPOOL_CACHE_DIR={no_folder}") as raised:
            await service.start(context)
    finally:
        await service.stop()
    assert "Not a directory" in raised.value.message
