"""Proves on this machine, at start-up, the equalities that mode `exact` promises."""

from pathlib import Path

from shared.engine.loaded_model import LoadedModel


def run_self_test(loaded: LoadedModel, cache_dir: Path) -> list[str]:
    """The equalities that failed; empty when all hold. Remembers its answer on disk."""
    raise NotImplementedError
