"""This node: nothing until the first worker attaches, then a pool and all that works on it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.transfer.fetcher import Fetcher
from services.transfer.node_pool import NodePool
from services.transfer.peers import Peers
from services.transfer.puller import Puller
from services.transfer.settings import TransferSettings
from shared.messages.common import NodeRef
from shared.messages.transfer import KvGeometry
from shared.runtime.lifecycle import Context
from shared.transport.base import Transport
from shared.transport.local import LocalTransport
from shared.transport.node_files import NodeFiles


@dataclass(frozen=True, slots=True)
class FormattedNode:
    """The parts that exist once the pool has a model."""

    pool: NodePool
    transport: Transport
    fetcher: Fetcher
    puller: Puller


class Node:
    """Owns the format: the first worker gives it, others must have the same."""

    def __init__(
        self,
        context: Context[TransferSettings],
        files: NodeFiles,
        on_change: Callable[[], None],
        on_formatted: Callable[[FormattedNode], None],
    ) -> None:
        self.ref = NodeRef(id=context.id, incarnation=context.incarnation)
        self.formatted: FormattedNode | None = None
        self._context = context
        self._files = files
        self._on_change = on_change
        self._on_formatted = on_formatted
        self._formatting = asyncio.Lock()
        self._threads = ThreadPoolExecutor(
            context.settings.checksum_threads, thread_name_prefix="checksum"
        )

    async def use_format(self, root: bytes, geometry: KvGeometry) -> FormattedNode:
        """The formatted node; ServiceError FORMAT_MISMATCH that names what differs."""
        async with self._formatting:
            if self.formatted is None:
                self.formatted = await self._format(root, geometry)
                self._on_formatted(self.formatted)
        self.formatted.pool.check_format(root, geometry)
        return self.formatted

    async def close(self) -> None:
        """After the last call has ended."""
        if self.formatted is not None:
            await self.formatted.transport.close()
            self.formatted.pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _format(self, root: bytes, geometry: KvGeometry) -> FormattedNode:
        context, settings = self._context, self._context.settings
        pool = await NodePool.format(
            self._files.segment,
            root,
            geometry,
            settings,
            self._threads,
            self._on_change,
        )
        transport = LocalTransport(pool.segment, num_threads=settings.copy_threads)
        peers = Peers(context.bus, self.ref, settings.peer_timeout_s)
        return FormattedNode(
            pool=pool,
            transport=transport,
            fetcher=Fetcher(pool, self.ref, transport, peers, context.tasks),
            puller=Puller(pool, transport, peers),
        )
