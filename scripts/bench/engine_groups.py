"""The groups of the engine's bars by name, and the run of those that were asked for."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from scripts.bench.bars import Bar
from scripts.bench.engine import (
    EngineBench,
    EngineOptions,
    OnRun,
    decode_bars,
    long_prefill_bars,
    prefill_bars,
)
from scripts.bench.engine_costs import (
    exact_bars,
    hit_bars,
    hook_bars,
    memory_bars,
    ready_bars,
    self_test_bars,
)
from scripts.bench.fleet import Fleet
from shared.checkpoint.fingerprint import weights_fingerprint
from shared.checkpoint.locate import locate
from shared.checkpoint.model_config import load_model_config

GROUPS: dict[str, Callable[[EngineBench], Iterable[Bar]]] = {
    "prefill": prefill_bars,
    "prefill-long": long_prefill_bars,
    "decode": decode_bars,
    "hooks": hook_bars,
    "exact": exact_bars,
    "hit": hit_bars,
    "self-test": self_test_bars,
    "memory": memory_bars,
    "ready": ready_bars,
}


@dataclass(frozen=True, slots=True)
class EngineReport:
    bars: list[Bar]
    bench: EngineBench
    versions: dict[str, str]
    load_before: float
    load_after: float
    unfinished: list[str]
    """Groups that were asked for and have no bars, since the user broke the run off."""

    def details(self) -> dict[str, Any]:
        """All that the bars were made of."""
        return {
            "model": self.bench.options.model,
            "threads": self.bench.options.threads,
            "rounds": self.bench.rounds,
            "load": {"before": self.load_before, "after": self.load_after},
            "versions": self.versions,
            "unfinished": self.unfinished,
            "runs": {name: series.as_json() for name, series in self.bench.series.items()},
        }


def run_groups(
    options: EngineOptions,
    names: Sequence[str],
    *,
    on_group: Callable[[str], None],
    on_run: OnRun,
) -> EngineReport:
    source = locate(options.model)
    config = load_model_config(source)
    load_before = os.getloadavg()[0]
    versions: dict[str, str] = {}
    bars: list[Bar] = []
    with Fleet(
        model=options.model,
        fingerprint=weights_fingerprint(source, options.cache_dir),
        max_positions=config.max_positions,
        threads=options.threads,
        cache_dir=options.cache_dir,
    ) as fleet:
        bench = EngineBench(options, config, fleet, on_run)
        unfinished = list(names)
        # A long run that is broken off keeps what it has.
        with suppress(KeyboardInterrupt):
            for name in names:
                on_group(name)
                bars.extend(GROUPS[name](bench))
                versions |= fleet.versions
                unfinished.remove(name)
    return EngineReport(bars, bench, versions, load_before, os.getloadavg()[0], unfinished)
