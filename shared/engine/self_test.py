"""Proves on this machine, at start-up, the equalities that mode `exact` promises.

It runs a few layers of the model itself: all layers have the same shapes, so the same kernels.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.kernel_check import agrees_with_torch
from shared.engine.kv_layout import KvLayout
from shared.engine.linear import is_row_independent
from shared.engine.loaded_model import LoadedModel
from shared.engine.model import LlamaModel
from shared.engine.prefill import PrefillEngine
from shared.native.file_lock import file_lock

_NUM_LAYERS = 2
_SEED = 20
_TAIL_TOKENS = 37
_SHORT_TAIL_TOKENS = 3
_BATCH_SIZES = (2, 3, 5, 8)

_REPEAT = "the same chunk computed again has the same KV"
_HIT = "a hit gives the KV and logits of a cold run"
_ONE_TOKEN = "a hit with a tail of one token gives the KV and logits of a cold run"
_BATCH = "a decoded row does not depend on the other rows of its batch"
_TORCH = "our kernels give what torch gives, up to rounding"
_THREADS = "KV and logits do not depend on the number of threads"


@dataclass(frozen=True, slots=True)
class _Result:
    kv: torch.Tensor  # [layer, 2, token, kv_head, head_dim]
    logits: torch.Tensor

    def equals(self, other: "_Result") -> bool:
        return torch.equal(self.kv, other.kv) and torch.equal(self.logits, other.logits)


def run_self_test(loaded: LoadedModel, cache_dir: Path) -> list[str]:
    """The equalities that failed; empty when all hold.

    Its answer is remembered on disk for this kv_format, host, thread count and build of the
    kernels.
    """
    folder = cache_dir / "self-test"
    folder.mkdir(parents=True, exist_ok=True)
    kernels = loaded.model.kernels
    build = "" if kernels is None else kernels.build
    root = loaded.kv_format.root(f"{platform.node()} {torch.get_num_threads()} {build}")
    remembered = folder / f"{root.hex()}.json"
    with file_lock(remembered.with_suffix(".lock")):
        answer = _remembered(remembered)
        if answer is not None:
            return answer
        failed = check_equalities(loaded)
        unfinished = remembered.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(failed), encoding="utf-8")
        unfinished.replace(remembered)
    return failed


def _remembered(path: Path) -> list[str] | None:
    """None where there is no answer, or a power cut left a file without one."""
    try:
        answer: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return answer


def check_equalities(loaded: LoadedModel) -> list[str]:
    """Computes them now, whatever was remembered."""
    bench = _Bench(loaded)
    grid = loaded.grid_tokens
    tail = min(_TAIL_TOKENS, loaded.config.max_positions - grid)
    prompt = bench.tokens(grid + tail)
    one_more = prompt[: grid + 1]
    cold = bench.prefill(prompt, first_slot=0)
    failed = [
        name
        for name, holds in (
            (_REPEAT, cold.equals(bench.prefill(prompt, first_slot=bench.num_prompt_slots))),
            (_HIT, bench.hit(prompt).equals(cold)),
            (_ONE_TOKEN, bench.hit(one_more).equals(bench.prefill(one_more, first_slot=0))),
            (_BATCH, bench.is_batch_independent()),
        )
        if not holds
    ]
    kernels = loaded.model.kernels
    if kernels is not None and not agrees_with_torch(kernels, loaded.config, loaded.model.dtype):
        failed.append(_TORCH)
    if is_row_independent(loaded.model.linear_mode, loaded.model.dtype):
        short = prompt[: grid + _SHORT_TAIL_TOKENS]
        short_cold, decoded = bench.prefill(short, first_slot=0), bench.decoded()
        current = torch.get_num_threads()
        with _threads(2 if current == 1 else 1):
            is_equal = (
                bench.prefill(prompt, first_slot=0).equals(cold)
                and bench.prefill(short, first_slot=0).equals(short_cold)
                and torch.equal(bench.decoded(), decoded)
            )
        if not is_equal:
            failed.append(_THREADS)
    return failed


class _Bench:
    """A cut model over a small pool of its own."""

    def __init__(self, loaded: LoadedModel) -> None:
        model = loaded.model.with_layers(_NUM_LAYERS)
        self._layout = replace(loaded.layout, num_layers=model.config.num_layers)
        self._vocab_size = model.config.vocab_size
        self._model: LlamaModel = model
        self._grid = loaded.grid_tokens
        self._per_chunk = loaded.grid_tokens // self._layout.block_tokens
        self.num_prompt_slots = 2 * self._per_chunk
        self._pool = _empty_pool(self._layout, 2 * self.num_prompt_slots)
        self._prefill = PrefillEngine(model, self._pool, self._layout, loaded.grid_tokens)
        self._random = np.random.default_rng(_SEED)

    def tokens(self, count: int) -> npt.NDArray[np.int32]:
        return self._random.integers(0, self._vocab_size, count, dtype=np.int32)

    def prefill(self, tokens: npt.NDArray[np.int32], first_slot: int) -> _Result:
        """A cold run into consecutive slots."""
        slots = range(first_slot, first_slot + self.num_prompt_slots)
        self._chunk(tokens, 0, slots)
        return self._finished(tokens, slots)

    def hit(self, tokens: npt.NDArray[np.int32]) -> _Result:
        """The first chunk comes from another request, whose tail differs, in other slots."""
        other = np.concatenate([tokens[: self._grid], self.tokens(len(tokens) - self._grid)])
        slots = list(reversed(range(2 * self.num_prompt_slots)))[: self.num_prompt_slots]
        self._chunk(other, 0, slots)
        self._chunk(other, self._grid, slots)
        self._pool[slots[self._per_chunk :]] = 0
        return self._finished(tokens, slots)

    def is_batch_independent(self) -> bool:
        """One sequence decodes a token alone, then among others at other positions."""
        largest = max(_BATCH_SIZES)
        decode = DecodeEngine(self._model, self._layout, capacity_tokens=2 * largest * self._grid)
        tokens = [int(token) for token in self.tokens(largest)]
        rows = []
        for index, token in enumerate(tokens):
            seq_id, count = str(index), self._layout.block_tokens - index
            decode.add(seq_id, count + 1)
            decode.load_block(seq_id, self._pool, index % len(self._pool), 0, count)
            rows.append((seq_id, token, count))
        alone = decode.step(rows[:1])[0]
        return all(
            torch.equal(decode.step(rows[1:size] + rows[:1])[-1], alone) for size in _BATCH_SIZES
        )

    def decoded(self) -> torch.Tensor:
        """Logits after one token that follows the first chunk of the last cold run."""
        decode = DecodeEngine(self._model, self._layout, capacity_tokens=self._grid + 1)
        decode.add("alone", self._grid + 1)
        for slot in range(self._per_chunk):
            size = self._layout.block_tokens
            decode.load_block("alone", self._pool, slot, slot * size, size)
        return decode.step([("alone", 0, self._grid)])[0]

    def _finished(self, tokens: npt.NDArray[np.int32], slots: Sequence[int]) -> _Result:
        logits = self._chunk(tokens, self._grid, slots)
        kv = self._pool[list(slots)].permute(1, 2, 0, 3, 4, 5).flatten(2, 3)
        return _Result(kv[:, :, : len(tokens)].clone(), logits)

    def _chunk(
        self, tokens: npt.NDArray[np.int32], start: int, slots: Sequence[int]
    ) -> torch.Tensor:
        chunk = tokens[start : start + self._grid]
        first = start // self._layout.block_tokens
        num_blocks = -(-len(chunk) // self._layout.block_tokens)
        logits = self._prefill.prefill_chunk(
            chunk, start, slots[:first], slots[first : first + num_blocks]
        )
        assert logits is not None  # asked for
        return logits


def _empty_pool(layout: KvLayout, num_slots: int) -> torch.Tensor:
    shape = (
        num_slots, layout.num_layers, 2, layout.block_tokens, layout.num_kv_heads, layout.head_dim
    )  # fmt: skip
    return torch.zeros(shape, dtype=layout.torch_dtype)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
