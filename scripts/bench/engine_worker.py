"""Measures our own engine, in a process of its own, as the peers are (see peer_lines)."""

import importlib.metadata
import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.bench.engine_layers import LayerClock
from scripts.bench.hook_cost import HookClock, cost_of, woken_loop
from scripts.bench.limits import copy_bytes_per_s, gemm_flops_per_s, read_bytes_per_s
from scripts.bench.references import ContiguousDecode, FreePrefill
from scripts.bench.work import linear_shapes
from shared.engine.decode import DecodeEngine
from shared.engine.kv_layout import view_pool
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.prefill import PrefillEngine
from shared.engine.self_test import check_equalities

_SMAPS = Path("/proc/self/smaps_rollup")


class Engine:
    def __init__(self, loaded: LoadedModel, pool_tokens: int) -> None:
        self._loaded = loaded
        layout = loaded.layout
        self._num_slots = -(-pool_tokens // layout.block_tokens)
        # Lazily resident, as the pool of a node is: it must not count as a worker's memory.
        memory = mmap.mmap(-1, self._num_slots * layout.block_bytes)
        self._pool = view_pool(memoryview(memory), layout, self._num_slots)
        self._prefill = PrefillEngine(loaded.model, self._pool, layout, loaded.grid_tokens)
        self._free: FreePrefill | None = None
        self._random = np.random.default_rng(1)

    def prefill(self, num_tokens: int) -> float:
        """Seconds of a prompt of random tokens, none of which is in the pool."""
        tokens = self._tokens(num_tokens)
        start_s = time.perf_counter()
        for start in range(0, num_tokens, self._loaded.grid_tokens):
            self._chunk(tokens, start)
        return time.perf_counter() - start_s

    def prefill_free(self, num_tokens: int) -> float:
        """The same without grid and pool, in chunks of the same size."""
        tokens = torch.from_numpy(self._tokens(num_tokens).astype(np.int64))
        if self._free is None:
            self._free = FreePrefill(self._loaded, self._loaded.grid_tokens)
        start_s = time.perf_counter()
        self._free.prefill(tokens)
        return time.perf_counter() - start_s

    def layer_seconds(self, cases: Sequence[tuple[int, int]]) -> list[list[float]]:
        """Of each layer of each chunk that is computed, and of what follows the last layers, for
        each (tokens, of them cached); all cases chunk by chunk in turn."""
        prompts = [self._tokens(num_tokens) for num_tokens, _ in cases]
        clocks = [LayerClock() for _ in cases]
        for start in range(0, max(map(len, prompts)), self._loaded.grid_tokens):
            for tokens, (num_tokens, prefix), clock in zip(prompts, cases, clocks, strict=True):
                if prefix <= start < num_tokens:
                    self._chunk(tokens, start, clock)
        return [clock.seconds for clock in clocks]

    def hooks(self, num_tokens: int, first_turn: int) -> dict[str, Any]:
        """What a worker's hooks cost each chunk of a prefill, as shares; and what share of a
        prefill they and the loop they wake take themselves. Each chunk is computed twice, the first
        one first by the clock of `first_turn`."""
        tokens = self._tokens(num_tokens)
        clocks: list[HookClock] = []
        costs: list[float | None] = []
        with woken_loop(self._loaded.config.num_layers) as woken:
            for number, start in enumerate(range(0, num_tokens, self._loaded.grid_tokens)):
                pair = [HookClock(woken, turn) for turn in range(2)]
                # Nobody is always the second, who finds the caches warm.
                for clock in reversed(pair) if (number + first_turn) % 2 else pair:
                    self._chunk(tokens, start, clock)
                costs.append(cost_of(pair[0].seconds, pair[1].seconds))
                clocks += pair
        own_s = sum(clock.inner_s for clock in clocks) + woken.cpu_s
        # The two have called each hook once.
        whole_s = sum(clock.whole_s for clock in clocks) / 2
        return {"costs": costs, "own": own_s / whole_s}

    def decode(self, context: int, batch: int, steps: int) -> float:
        """Seconds of a step over sequences of `context` tokens, loaded from the pool."""
        layout = self._loaded.layout
        room = context + steps + 1
        engine = DecodeEngine(self._loaded.model, layout, capacity_tokens=batch * room)
        names = [str(index) for index in range(batch)]
        for index, name in enumerate(names):
            engine.add(name, room)
            for block, start in enumerate(range(0, context, layout.block_tokens)):
                slot = (index + block) % self._num_slots
                count = min(layout.block_tokens, context - start)
                engine.load_block(name, self._pool, slot, start, count)
        tokens = [0] * batch

        def step(position: int) -> None:
            rows = [(name, tokens[index], position) for index, name in enumerate(names)]
            tokens[:] = engine.step(rows).argmax(-1).tolist()

        return _seconds_per_step(step, context, steps)

    def decode_contiguous(self, context: int, batch: int, steps: int) -> float:
        """The same in one tensor, without blocks and without joins and leaves."""
        engine = ContiguousDecode(self._loaded, context=context, batch=batch, room=steps + 1)
        tokens = torch.zeros(batch, dtype=torch.int64)

        def step(_position: int) -> None:
            nonlocal tokens
            tokens = engine.step(tokens)

        return _seconds_per_step(step, context, steps)

    def gemm_limit(self, rows: int) -> float:
        """FLOP/s."""
        shapes = linear_shapes(self._loaded.config)
        return gemm_flops_per_s(shapes, self._loaded.layout.torch_dtype, rows)

    def read_limit(self) -> float:
        return read_bytes_per_s()

    def copy_limit(self) -> float:
        return copy_bytes_per_s()

    def self_test(self) -> dict[str, Any]:
        """CPU seconds of the start-up self-test, computed anew, and what it found."""
        start_s = time.process_time()
        failed = check_equalities(self._loaded)
        return {"seconds": time.process_time() - start_s, "failed": failed}

    def pss_bytes(self) -> int:
        """Memory of this process; shared pages count in shares."""
        for line in _SMAPS.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"{_SMAPS} has no Pss")

    def _tokens(self, count: int) -> Any:
        return self._random.integers(0, self._loaded.config.vocab_size, count, dtype=np.int32)

    def _chunk(self, tokens: Any, start: int, clock: LayerClock | HookClock | None = None) -> None:
        chunk = tokens[start : start + self._loaded.grid_tokens]
        block_tokens = self._loaded.layout.block_tokens
        first = start // block_tokens
        slots: Sequence[int] = range(first, first + -(-len(chunk) // block_tokens))
        if clock is not None:
            clock.begin()
        self._prefill.prefill_chunk(
            chunk,
            start,
            range(first),
            slots,
            on_layer=None if clock is None else clock.on_layer,
            want_logits=start + len(chunk) == len(tokens),
        )
        if clock is not None:
            clock.end()


def _seconds_per_step(step: Callable[[int], None], context: int, steps: int) -> float:
    step(context)  # not counted: first touch of memory
    start_s = time.perf_counter()
    for position in range(context + 1, context + 1 + steps):
        step(position)
    return (time.perf_counter() - start_s) / steps


def load(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    start_s = time.perf_counter()
    loaded = load_model(
        settings["model"],
        dtype=settings["dtype"],
        cache_dir=Path(settings["cache_dir"]),
        threads=settings["threads"],
    )
    load_s = time.perf_counter() - start_s
    engine = Engine(loaded, settings["pool_tokens"])
    names = (
        "prefill", "prefill_free", "layer_seconds", "hooks", "decode",
        "decode_contiguous", "gemm_limit", "read_limit", "copy_limit", "self_test", "pss_bytes",
    )  # fmt: skip
    return (
        {
            "version": f"moonpool {importlib.metadata.version('moonpool')}, torch "
            f"{torch.__version__}",
            "linear_mode": loaded.model.linear_mode,
            "grid_tokens": loaded.grid_tokens,
            "load_s": load_s,
        },
        {name: getattr(engine, name) for name in names},
    )
