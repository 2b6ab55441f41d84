"""This node: nothing until the first worker attaches, then a pool and all that works on it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.transfer.fetcher import Fetcher
from services.transfer.flow import Flow
from services.transfer.node_pool import NodePool
from services.transfer.peers import Peers
from services.transfer.puller import Puller
from services.transfer.read_evidence import ReadEvidence
from services.transfer.settings import TransferSettings
from shared.messages.common import ErrorCode, NodeRef
from shared.messages.transfer import KvGeometry
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import Context
from shared.runtime.outcome_reporter import OutcomeReporter
from shared.transport.copying import load_copier
from shared.transport.node_files import NodeFiles
from shared.transport.opening import (
    Place,
    TransportOptions,
    Transports,
    Unavailable,
    open_transports,
    parse_names,
)


@dataclass(frozen=True, slots=True)
class FormattedNode:
    """The parts that exist once the pool has a model."""

    pool: NodePool
    transports: Transports
    flow: Flow
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
            await self.formatted.transports.router.close()
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
        try:
            transports = await self._open(pool)
        except Unavailable as error:
            pool.close()
            raise ServiceError(ErrorCode.INTERNAL, str(error)) from None
        router = transports.router
        flow = Flow(
            max_peer_bytes=settings.peer_bytes_in_flight,
            background_share=settings.replicate_share,
        )
        outcomes = OutcomeReporter(context.bus, self.ref.id)
        context.tasks.start_soon(outcomes.run(), name="outcomes")
        evidence = ReadEvidence(outcomes)
        peers = Peers(context.bus, self.ref, settings.peer_timeout_s, evidence)
        router.on_peer_lost = lambda peer, reason: peers.lost(peer, reason)
        return FormattedNode(
            pool=pool,
            transports=transports,
            flow=flow,
            fetcher=Fetcher(pool, self.ref, router, peers, context.tasks, flow),
            puller=Puller(pool, router, peers, flow),
        )

    async def _open(self, pool: NodePool) -> Transports:
        settings = self._context.settings
        copier = await asyncio.to_thread(load_copier, settings.cache_dir)
        options = TransportOptions(
            names=parse_names(settings.transports),
            copy_threads=settings.copy_threads,
            cache_dir=settings.cache_dir,
            nats_url=settings.nats_url,
            tcp_host=settings.tcp_host,
            tcp_ports=settings.tcp_ports,
            tcp_streams=settings.tcp_streams,
            rdma=settings.rdma_options,
        )
        return await open_transports(
            Place(pool.segment, self.ref.id, self.ref.incarnation, copier, options)
        )
