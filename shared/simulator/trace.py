"""Reads request traces: JSON lines as Mooncake publishes them. Decides nothing.

A line: {"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [..]}; an id names a
block of 512 tokens and all before it, the last block may be partial.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BLOCK_TOKENS = 512

Mode = Literal["trace", "served"]
"""`trace`: the last, partial block counts too, a hit is capped at the prompt's length.
`served`: full blocks only, as a serving system can share them."""


class TraceError(ValueError):
    """A line that is no request; names file, line and field."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    arrival_s: float
    num_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]

    def blocks(self, mode: Mode) -> tuple[int, ...]:
        if mode == "trace":
            return self.block_ids
        return self.block_ids[: self.num_tokens // BLOCK_TOKENS]

    def hit_tokens(self, num_blocks: int) -> int:
        return min(num_blocks * BLOCK_TOKENS, self.num_tokens)


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests, by arrival; raises TraceError, or OSError where there is no file."""
    with path.open(encoding="utf-8") as lines:
        requests = list(parse_trace(lines, path.name))
    if not requests:
        raise TraceError(f"{path.name}: holds no request")
    return sorted(requests, key=lambda request: request.arrival_s)


def parse_trace(lines: Iterator[str], name: str) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _request(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise TraceError(f"{name} line {number}: {what}") from error


def _request(fields: Any) -> TraceRequest:
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    request = TraceRequest(
        arrival_s=float(fields["timestamp"]) / 1e3,
        num_tokens=int(fields["input_length"]),
        output_tokens=int(fields["output_length"]),
        block_ids=tuple(int(each) for each in fields["hash_ids"]),
    )
    if request.num_tokens < 1:
        raise ValueError(f"input_length: must be at least 1, is {request.num_tokens}")
    if request.output_tokens < 0:
        raise ValueError(f"output_length: must not be negative, is {request.output_tokens}")
    expected = -(-request.num_tokens // BLOCK_TOKENS)
    if len(request.block_ids) not in (expected, request.num_tokens // BLOCK_TOKENS):
        raise ValueError(
            f"hash_ids: {len(request.block_ids)} ids for {request.num_tokens} tokens, "
            f"{expected} blocks of {BLOCK_TOKENS} expected"
        )
    return request
