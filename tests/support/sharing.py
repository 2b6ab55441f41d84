"""Which tests go to the same worker, and which go first."""

import functools
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]
SHARED = ("real_cluster", "dummy_cluster", "fault_cluster")
"""Fixtures that are a whole cluster: the files that use one run on the same worker."""


@functools.cache
def scope_of(file: str) -> str:
    """Itself, or the cluster that its tests share with others."""
    text = (ROOT / file).read_text()
    return next((fixture for fixture in SHARED if fixture in text), file)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Longest first, so that no worker is alone at the end: what shares a cluster, then the files
    with the most tests."""
    scopes = [scope_of(item.nodeid.partition("::")[0]) for item in items]
    sizes = Counter(scopes)
    ranks = [(scope not in SHARED, -sizes[scope], scope) for scope in scopes]
    return [item for _, item in sorted(zip(ranks, items, strict=True), key=lambda pair: pair[0])]


class SharedClusters(LoadFileScheduling):
    """By file as `--dist loadfile` does it, but for the files that share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.partition("::")[0])
