"""How much of a prompt's KV moves to another node while the prompt is still computed."""

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scripts.bench.bars import Bar, judged
from scripts.replay.plan import PlannedRequest
from scripts.replay.player import Player
from shared.worker.grid import NUM_LAYER_GROUPS

TOKENS_OF_ID = 64
OUTPUT_TOKENS = 4
HIDDEN_GOAL, TAIL_GOAL = 0.9, 1.0


class OverlapError(Exception):
    """A request gave no usable answer."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What the bill of one prompt says."""

    num_chunks: int
    compute_s: float
    streamed_bytes: int
    hidden_bytes: int
    """Had arrived when prefill handed over."""
    tail_s: float
    """From then until decode had all of it, verified."""
    transport: str

    @property
    def hidden_share(self) -> float:
        return self.hidden_bytes / self.streamed_bytes

    @property
    def group_s(self) -> float:
        """Computing one layer group of one chunk, in the mean."""
        return self.compute_s / self.num_chunks / NUM_LAYER_GROUPS

    def as_json(self) -> dict[str, Any]:
        return {
            "chunks": self.num_chunks,
            "compute_s": self.compute_s,
            "streamed_bytes": self.streamed_bytes,
            "hidden_bytes": self.hidden_bytes,
            "tail_s": self.tail_s,
            "layer_group_s": self.group_s,
            "transport": self.transport,
        }


async def measure_overlap(
    player: Player,
    *,
    num_tokens: int,
    grid_tokens: int,
    num_prompts: int,
    on_run: Callable[[int], None],
) -> list[Streamed]:
    """Different prompts of `num_tokens`, one after the other, where `player` places them."""
    found = []
    for number in range(num_prompts):
        on_run(number)
        chain = str(random.getrandbits(60))
        ids = tuple(range(-(-num_tokens // TOKENS_OF_ID)))
        planned = PlannedRequest(0.0, num_tokens, OUTPUT_TOKENS, ids, TOKENS_OF_ID, chain)
        (played,) = (await player.play([planned])).played
        if not played.is_served or not played.bill.get("streamed_bytes"):
            raise OverlapError(played.error or "the answer's bill has no streamed bytes")
        bill = played.bill
        found.append(
            Streamed(
                num_chunks=-(-num_tokens // grid_tokens),
                compute_s=float(bill["bill"]["real"]["compute_s"]),
                streamed_bytes=int(bill["streamed_bytes"]),
                hidden_bytes=int(bill["hidden_bytes"]),
                tail_s=float(bill["tail_s"]),
                transport=str(bill["transport"]),
            )
        )
    return found


def bars_of(found: list[Streamed]) -> list[Bar]:
    first = found[0]
    note = f"{first.streamed_bytes / 1e6:.0f} MB over {first.transport}, {len(found)} prompts"
    tail_ms = statistics.median(one.tail_s for one in found) * 1e3
    group_ms = statistics.median(one.group_s for one in found) * 1e3
    return [
        judged(
            "KV that moved while prefill computed",
            statistics.median(one.hidden_share for one in found),
            ">=",
            HIDDEN_GOAL,
            "of all",
            note=note,
        ),
        judged(
            "decode can start after the last layer",
            statistics.median(one.tail_s / one.group_s for one in found),
            "<=",
            TAIL_GOAL,
            "layer groups",
            note=f"{tail_ms:.0f} ms; a layer group of a chunk takes {group_ms:.0f} ms",
        ),
    ]
