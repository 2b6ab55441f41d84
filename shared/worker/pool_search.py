"""Finds the transfer a worker attaches to, among those with a socket in the shared folder."""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.messages.common import Empty, ErrorCode
from shared.messages.pool import Attach, AttachReply, PoolDescription
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError
from shared.transport.node_files import NodeFiles, nodes_in
from shared.worker.pool_connection import PoolConnection

log = logging.getLogger("moonpool.pool_client")
LOOK_AGAIN_S = 0.5
DESCRIBE_TIMEOUT_S = 2.0
TRY_AGAIN_S = 0.1
MAX_TURN_WAIT_S = 5.0
ATTACH_TIMEOUT_S = 60.0
"""The first attach makes the segment, which takes a while for a large one."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    connection: PoolConnection
    description: PoolDescription


async def find_pool(
    folder: Path, node: str | None, request: Attach, timeout_s: float
) -> tuple[PoolConnection, AttachReply]:
    """Attached connection to the named node, or to the one with the fewest workers of the role."""
    deadline_s = monotonic_s() + timeout_s
    wanted = f"node {node}" if node is not None else "a transfer service"
    is_waiting_said = False
    refusal: ServiceError | None = None
    while True:
        async with _turn(folder):
            candidates = await _describe_all(folder, node)
            found, refusal = await _attach_first(candidates, request)
        if found is not None:
            return found
        if refusal is not None and refusal.code == ErrorCode.FORMAT_MISMATCH:
            raise refusal
        remaining_s = deadline_s - monotonic_s()
        if remaining_s <= 0:
            reason = refusal.message if refusal is not None else "none has a socket there"
            raise ServiceError(
                ErrorCode.POOL_LOST,
                f"no pool to attach to in {folder} within {timeout_s:g} s: {reason}. Start "
                "`python -m services.transfer` with the same MOONPOOL_SHARED_DIR",
                is_retryable=True,
            )
        if not is_waiting_said:
            log.info("waiting for %s in %s", wanted, folder)
            is_waiting_said = True
        await asyncio.sleep(min(LOOK_AGAIN_S, remaining_s))


@asynccontextmanager
async def _turn(folder: Path) -> AsyncIterator[None]:
    """Workers that start together choose one after the other, so that they spread evenly.

    Only evenness hangs on it: who waits too long chooses without its turn.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield  # no folder yet: there is nothing to choose from
        return
    try:
        deadline_s = monotonic_s() + MAX_TURN_WAIT_S
        while monotonic_s() < deadline_s:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(TRY_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


async def _describe_all(folder: Path, node: str | None) -> list[_Candidate]:
    """Those that answer, ready or not yet formatted."""
    named = [files for files in nodes_in(folder) if node is None or files.node == node]
    answers = await asyncio.gather(*(_describe(files) for files in named))
    return [candidate for candidate in answers if candidate is not None]


async def _describe(files: NodeFiles) -> _Candidate | None:
    try:
        connection = await PoolConnection.connect(files.socket)
    except (OSError, TimeoutError):
        return None
    try:
        description = await connection.call(
            "describe", Empty(), PoolDescription, timeout_s=DESCRIBE_TIMEOUT_S
        )
    except ServiceError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return _Candidate(connection, description)


async def _attach_first(
    candidates: list[_Candidate], request: Attach
) -> tuple[tuple[PoolConnection, AttachReply] | None, ServiceError | None]:
    """The first that takes us, fewest workers of our role first; else why one refused.

    Another model is the reason only when all hold one: whoever is full or drains may take us soon.
    """
    refusals: list[ServiceError] = []
    ordered = sorted(candidates, key=lambda candidate: _rank(candidate, request.role))
    chosen: PoolConnection | None = None
    try:
        for candidate in ordered:
            try:
                reply = await candidate.connection.call(
                    "attach", request, AttachReply, timeout_s=ATTACH_TIMEOUT_S
                )
            except ServiceError as error:
                refusals.append(error)
                continue
            chosen = candidate.connection
            return (chosen, reply), None
    finally:
        for candidate in ordered:
            if candidate.connection is not chosen:
                candidate.connection.close()
    refusals.sort(key=lambda error: error.code == ErrorCode.FORMAT_MISMATCH)
    return None, refusals[0] if refusals else None


def _rank(candidate: _Candidate, role: str) -> tuple[int, int, str]:
    workers = candidate.description.workers
    return workers.get(role, 0), sum(workers.values()), candidate.description.node.id
