"""`moonpool doctor`: what this machine offers to a node, and what to change."""

import asyncio
import re
import resource
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from scripts.cli.output import CommandError, print_json
from services.transfer.settings import TransferSettings
from shared.runtime.settings import PREFIX
from shared.transport.copying import load_copier
from shared.transport.node_files import nodes_in
from shared.transport.opening import (
    Place,
    TransportOptions,
    Unavailable,
    open_transports,
    parse_names,
)
from shared.transport.segment import Segment, SegmentError
from shared.transport.topology import Topology, read_topology
from shared.transport.ucx_report import ucx_report

PROBE_BYTES = 64 << 10
GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `problem` says what to do, empty when all is well."""

    name: str
    found: str
    problem: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at what a node needs here: shared memory, kernels, transports, NICs and their places.

    Reads the same MOONPOOL_ variables as a transfer service. Exit code 1 when something must be
    changed before a node can run.

    Examples:

      moonpool doctor

      MOONPOOL_TRANSPORTS=tcp moonpool doctor --json | jq .checks
    """
    try:
        settings = TransferSettings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + "_".join(map(str, first["loc"])).upper()
        raise CommandError(f"{name}: {first['msg']}", hint="correct or unset it") from None
    checks = [_shared_memory(settings), _huge_pages(), _locked_memory(), _copy(settings)]
    checks += asyncio.run(_transports(settings))
    if "rdma" in parse_names(settings.transports):
        checks.append(Check("UCX", ucx_report(settings.rdma_options).line))
    topology = read_topology()
    is_ok = not any(check.problem for check in checks)
    if as_json:
        shown = [_shown(check) for check in checks]
        print_json({"ok": is_ok, "checks": shown, "topology": topology.as_json()})
    else:
        _print(checks, topology)
    raise typer.Exit(0 if is_ok else 1)


def _shared_memory(settings: TransferSettings) -> Check:
    folder = settings.shared_dir
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    usage = shutil.disk_usage(there)
    living = len(nodes_in(folder))
    found = f"{there}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free, {living} nodes"
    if usage.free < settings.pool_bytes:
        return Check(
            "shared memory",
            found,
            f"a pool of {settings.pool_bytes / GIB:.1f} GiB does not fit: lower "
            "MOONPOOL_POOL_BYTES or enlarge the tmpfs (docker: --shm-size)",
        )
    return Check("shared memory", found)


def _huge_pages() -> Check:
    try:
        text = MEMINFO.read_text()
    except OSError:
        return Check("huge pages", "not known")
    found = {name: int(value) for name, value in re.findall(r"(HugePages_\w+):\s+(\d+)", text)}
    free, total = found.get("HugePages_Free", 0), found.get("HugePages_Total", 0)
    return Check("huge pages", f"{free} of {total} free")


def _locked_memory() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB"
    return Check("locked memory", f"{shown} (RDMA registers the whole pool)")


def _copy(settings: TransferSettings) -> Check:
    copier = load_copier(settings.cache_dir)
    hint = "" if copier.name == "native" else " (install gcc for the faster one)"
    return Check("copies", f"{copier.name}{hint}")


async def _transports(settings: TransferSettings) -> list[Check]:
    """Opens each for a moment, on a segment of its own."""
    names = parse_names(settings.transports)
    options = TransportOptions(
        names=names,
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


def _shown(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "found": check.found,
        "ok": not check.problem,
        "problem": check.problem,
    }


def _print(checks: list[Check], topology: Topology) -> None:
    out = Console(highlight=False)
    table = Table(title="this machine", title_justify="left")
    for column in ("what", "found", "do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(check.name, check.found, f"[red]{check.problem}[/]" if check.problem else "")
    out.print(table)
    paths = Table(title="NICs by memory", title_justify="left")
    for column in ("memory", "preferred", "secondary"):
        paths.add_column(column)
    for memory, each in topology.matrix().items():
        paths.add_row(memory, ", ".join(each.preferred) or "-", ", ".join(each.secondary) or "-")
    out.print(paths)
