"""Tells decode instances which layers are ready. A hint: what does not fit is dropped."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages import subjects
from shared.messages.common import InstanceRef, NodeRef, RequestRef
from shared.messages.decode import KvBlock, KvReady
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

log = logging.getLogger("moonpool.worker")
MAX_HINTS = 4096


@dataclass(frozen=True, slots=True)
class Hints:
    """Layers [first, end) of these blocks are ready."""

    ref: RequestRef
    node: NodeRef
    prefill: str
    """Incarnation of who computes them."""
    blocks: Sequence[KvBlock]
    layers: tuple[int, int]


class KvAnnouncer:
    """Owns the hints that are not sent yet; `run` is a task of the service."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._hints: asyncio.Queue[tuple[str, KvReady]] = asyncio.Queue(MAX_HINTS)

    def announce(self, decode: InstanceRef, hints: Hints) -> None:
        subject = subjects.instance("decode", decode.id, "kv")
        first_layer, end_layer = hints.layers
        for block in hints.blocks:
            if self._hints.full():
                return  # the hand-over names every block; decode pulls it then
            hint = KvReady(
                ref=hints.ref,
                node=hints.node,
                block=block,
                first_layer=first_layer,
                end_layer=end_layer,
                prefill=hints.prefill,
            )
            self._hints.put_nowait((subject, hint))

    async def run(self) -> None:
        while True:
            subject, hint = await self._hints.get()
            try:
                await self._bus.publish(subject, hint)
            except ServiceError as error:
                log.debug("a hint was not sent: %s", error)
