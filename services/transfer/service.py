"""The transfer service: wiring, start, drain and stop of one node's pool."""

import asyncio
import logging

from services.transfer.attachments import Attachments
from services.transfer.copies import CopiesElsewhere
from services.transfer.index_session import IndexSession
from services.transfer.leaver import Leaver
from services.transfer.node import FormattedNode, Node
from services.transfer.operator_handlers import OperatorHandlers
from services.transfer.peer_handlers import PeerHandlers
from services.transfer.readings import NodeReadings
from services.transfer.residency_publisher import ResidencyPublisher
from services.transfer.settings import TransferSettings
from services.transfer.tiers import Tiers
from services.transfer.worker_calls import WorkerCalls
from services.transfer.worker_socket import WorkerSocket
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.reports import NodeReport
from shared.messages.transfer import NodeDrain, NodeDrainReply
from shared.runtime.errors import ServiceError
from shared.runtime.heartbeat import Heartbeat
from shared.runtime.lifecycle import Context
from shared.transport.node_files import (
    NodeFiles,
    NodeLock,
    SharedFolderError,
    check_socket_path,
    prepare_folder,
    remove_dead,
)

log = logging.getLogger("moonpool.transfer")
CLOSING_S = 2.0
LOOK_INTERVAL_S = 2.0
HAND_OVER_SHARE = 0.6
"""Of the time to drain."""


class TransferService:
    """One node's pool, its workers' socket, its peers' endpoints."""

    def __init__(self, settings: TransferSettings) -> None:
        self._settings = settings
        self._attachments = Attachments()
        self._context: Context[TransferSettings]
        self._files: NodeFiles | None = None
        self._lock: NodeLock | None = None
        self._node: Node
        self._publisher: ResidencyPublisher
        self._heartbeat: Heartbeat
        self._calls: WorkerCalls
        self._socket: WorkerSocket | None = None
        self._handlers: PeerHandlers | None = None
        self._tiers: Tiers | None = None

    async def start(self, context: Context[TransferSettings]) -> None:
        self._context = context
        files = self._take_files(context)
        self._node = Node(context, files, self._on_blocks_change, self._on_formatted)
        self._publisher = ResidencyPublisher(context.bus, self._node.ref)
        self._heartbeat = Heartbeat(
            context.bus, subjects.report("transfer", context.id), self._report
        )
        self._calls = WorkerCalls(self._node, self._attachments, self._heartbeat.poke)
        self._handlers = PeerHandlers(self._node, self._publisher)
        readings = NodeReadings(
            self._report, self._node, self._handlers, self._publisher, self._attachments.by_role
        )
        context.meters.add("transfer", readings.readings)
        operator = OperatorHandlers(
            self._node,
            lambda: self._tiers,
            self._calls.check_not_draining,
            self._drain_for_operator,
        )
        await context.serve(
            [*self._handlers.endpoints(), *operator.endpoints()],
            metadata={"node": context.id, "socket": str(files.socket)},
        )
        self._socket = WorkerSocket(context.tasks, self._calls)
        await self._socket.listen(files.socket)
        context.state = "ready"
        context.tasks.start_soon(self._heartbeat.run(), name="heartbeat")
        context.tasks.start_soon(self._watch_files(files), name="own files")
        log.info("workers attach at %s", files.socket)

    async def drain(self) -> None:
        """No new workers and fetches; the calls that run end by themselves."""
        if self._socket is None:
            return
        self._calls.is_draining = True
        self._heartbeat.poke()
        self._socket.stop_listening()
        await self._attachments.wait_calls()
        await self._hand_over(HAND_OVER_SHARE * self._settings.drain_timeout_s)
        await self._publisher.flush()

    async def _drain_for_operator(self, request: NodeDrain) -> NodeDrainReply:
        """Like the end, but the node stays: its blocks can be read, and it can be taken back."""
        context = self._context
        if context.state != "starting" and not context.stopping.is_set():
            self._calls.is_draining = not request.is_over
            context.state = "ready" if request.is_over else "draining"
            self._heartbeat.poke()
        moved_bytes = 0
        if not request.is_over:
            moved_bytes = await self._hand_over(request.remaining_ms / 1000)
        return NodeDrainReply(state=context.state, moved_bytes=moved_bytes)

    async def _hand_over(self, timeout_s: float) -> int:
        formatted, tiers = self._node.formatted, self._tiers
        if formatted is None or tiers is None or not self._settings.drain_bytes:
            return 0
        leaver = Leaver(self._context.bus, self._node.ref, formatted, tiers)
        return await leaver.hand_over(self._settings.drain_bytes, timeout_s)

    async def stop(self) -> None:
        if self._handlers is not None:
            self._handlers.stop()
        if self._socket is not None:
            self._socket.close()
            await self._wait_detached()
            if self._tiers is not None:
                await self._tiers.close()
            await self._node.close()
        if self._files is not None:
            self._files.remove()
        if self._lock is not None:
            self._lock.release()

    async def _wait_detached(self) -> None:
        """Sockets are closed: their calls stop, what they held is given back."""
        try:
            async with asyncio.timeout(CLOSING_S):
                await self._attachments.wait_empty()
        except TimeoutError:
            log.warning("%d workers are still attached", len(self._attachments.names()))

    def _take_files(self, context: Context[TransferSettings]) -> NodeFiles:
        files = NodeFiles(self._settings.shared_dir, context.id, context.incarnation)
        try:
            prepare_folder(files.folder)
            check_socket_path(files)
        except SharedFolderError as error:
            raise ServiceError(ErrorCode.INTERNAL, str(error)) from None
        for dead in remove_dead(files.folder):
            log.info("removed what node %s incarnation %s left", dead.node, dead.incarnation)
        self._lock = NodeLock(files)
        self._files = files
        return files

    async def _watch_files(self, files: NodeFiles) -> None:
        """Ends the service when a file of its is deleted: those who come later find no pool."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            is_formatted = self._node.formatted is not None
            missing = await asyncio.to_thread(files.missing, is_formatted=is_formatted)
            if missing and not self._calls.is_draining:
                raise ServiceError(
                    ErrorCode.POOL_LOST,
                    f"{missing[0]} was deleted while the node ran; the node must start anew. Keep "
                    "cleaners of temporary files away from MOONPOOL_SHARED_DIR",
                )

    def _on_blocks_change(self) -> None:
        self._publisher.poke()
        if self._tiers is not None:
            self._tiers.on_change()

    def _on_formatted(self, formatted: FormattedNode) -> None:
        tasks, context = self._context.tasks, self._context
        copies = CopiesElsewhere(context.bus, context.id, formatted.pool.root)
        tiers = Tiers(formatted, context.settings, self._node.ref, copies.ask)
        self._tiers = self._calls.tiers = tiers
        if self._handlers is not None:
            self._handlers.tiers = tiers
        self._publisher.ssd = lambda: tiers.ssd_blocks
        tiers.start(tasks)
        tasks.start_soon(self._publisher.run(formatted.pool), name="residency")
        session = IndexSession(
            context.bus,
            self._node.ref,
            formatted.pool.root,
            lambda: self._publisher.seq,
            context.settings.index_timeout_s,
        )
        tasks.start_soon(session.run(), name="index session")
        self._heartbeat.poke()

    def _report(self) -> NodeReport:
        context, formatted = self._context, self._node.formatted
        base = NodeReport(
            id=context.id,
            incarnation=context.incarnation,
            state=context.state,
            attached=self._attachments.names(),
        )
        if formatted is None:
            return base
        pool, counts = formatted.pool, formatted.pool.blocks.counts
        tiers = {} if self._tiers is None else self._tiers.report()
        return base.model_copy(
            update={
                **tiers,
                "root": pool.root,
                "block_bytes": pool.geometry.block_bytes,
                "slots_total": counts.total,
                "slots_free": counts.free,
                "slots_writing": counts.writing,
                "slots_private": counts.private,
                "slots_sealed": counts.sealed,
                "slots_leased": counts.held,
                "bytes_in_flight": formatted.flow.bytes_in_flight,
                "bytes_in_flight_by_peer": formatted.flow.by_peer,
                "bytes_moved_by_peer": formatted.flow.moved_by_peer,
                "transports": formatted.transports.router.names,
                "resting_transports": formatted.transports.router.resting,
                "bytes_fetched_total": formatted.fetcher.bytes_fetched_total,
                "bytes_streamed_total": formatted.puller.bytes_streamed_total,
                "evictions_total": counts.evictions_total,
                "checksum_failures_total": pool.checksum_failures_total,
            }
        )
