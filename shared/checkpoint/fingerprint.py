"""A stable name of the exact weights. Hashes each file once, then remembers it."""

from pathlib import Path

from shared.checkpoint.locate import ModelSource


def weights_fingerprint(source: ModelSource, cache_dir: Path | None = None) -> str:
    raise NotImplementedError(source)
