"""The ways of this machine to other nodes, each opened for a moment."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from scripts.doctor.check import Check
from services.transfer.settings import TransferSettings
from shared.transport.copying import load_copier
from shared.transport.opening import (
    Place,
    TransportOptions,
    Unavailable,
    open_transports,
    parse_names,
)
from shared.transport.segment import Segment, SegmentError
from shared.transport.ucx_report import ucx_report

PROBE_BYTES = 64 << 10


async def transport_checks(settings: TransferSettings) -> list[Check]:
    checks = [_copies(settings), *await _transports(settings)]
    if "rdma" in parse_names(settings.transports):
        checks.append(Check("UCX", ucx_report(settings.rdma_options).line))
    return checks


def _copies(settings: TransferSettings) -> Check:
    copier = load_copier(settings.cache_dir)
    hint = "" if copier.name == "native" else " (install gcc for the faster one)"
    return Check("copies", f"{copier.name}{hint}")


async def _transports(settings: TransferSettings) -> list[Check]:
    """Opens each on a segment of its own."""
    options = TransportOptions(
        names=parse_names(settings.transports),
        cache_dir=settings.cache_dir,
        nats_url=settings.nats_url,
        tcp_host=settings.tcp_host,
        tcp_ports=settings.tcp_ports,
        rdma=settings.rdma_options,
    )
    try:
        segment = await asyncio.to_thread(_probe_segment)
    except (OSError, SegmentError) as error:
        return [Check("transports", "", f"no shared memory to try them on: {error}")]
    try:
        copier = await asyncio.to_thread(load_copier, settings.cache_dir)
        found = await open_transports(Place(segment, "doctor", "1", copier, options))
    except Unavailable as error:
        return [Check("transports", "", str(error))]
    else:
        tcp = found.tcp
        where = {"tcp": f"would listen at {tcp.host}" if tcp else ""}
        checks = [
            Check(f"transport {name}", where.get(name) or "there") for name in found.router.names
        ]
        checks += [
            Check(f"transport {name}", f"not here: {why}") for name, why in found.missing.items()
        ]
        await found.router.close()
        return checks
    finally:
        segment.close()


def _probe_segment() -> Segment:
    folder = Path(tempfile.mkdtemp(prefix="moonpool-doctor-"))
    try:
        return Segment.create(folder / "doctor.1.seg", num_slots=1, block_bytes=PROBE_BYTES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
