"""`moonpool bench ssd`: the SSD tier beside plain reads, the pool's books, an idle transfer."""

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import psutil
import typer

from scripts.bench.bars import Bar, judged
from scripts.bench.ssd import ReadFigures, SlotFigures, measure_reads, measure_slots
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions

MB = 1 << 20
TEMPORARY = Path(tempfile.gettempdir())
MEASURED = ("lru", "decayed_frequency", "predicted_reuse")
"""Eviction policies; the last is what a node has by default."""
IDLE_S = 10.0
NODE = "node-1"
READ_GOAL = 0.8
SLOT_GOAL_US = 5.0
IDLE_GOAL = 0.01


def ssd(
    folder: Annotated[
        Path, typer.Option("--dir", help="On the disk to measure; files are removed at the end.")
    ] = TEMPORARY,
    megabytes: Annotated[int, typer.Option("--mb", min=64, help="To read in each round.")] = 512,
    rounds: Annotated[int, typer.Option(min=1)] = 10,
    slots: Annotated[int, typer.Option(min=1024, help="Of the pool whose books are timed.")] = (
        1 << 20
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure the SSD tier, the pool's books at a million slots, and an idle transfer service.

    The tier's reads (looked up, read past the page cache, checked, sealed in the pool) against
    plain direct reads of the same files by as many threads, in turns. Exit code 0 only if the bars
    are ok.

    Example:

      moonpool bench ssd --dir /mnt/nvme
    """
    if not folder.is_dir():
        raise CommandError(f"--dir: {folder} is no folder", hint="name one on the disk to measure")
    with console.status("reading") as status:
        reads = []
        for size in (1, 4, 16):
            status.update(f"blocks of {size} MB")
            reads.append(measure_reads(folder, size * MB, megabytes * MB, rounds))
        status.update("the pool's books")
        books = [measure_slots(slots, policy) for policy in MEASURED]
        status.update("an idle transfer")
        idle = asyncio.run(_idle_share())
    bars = [*map(_read_bar, reads), *(bar for one in books for bar in _slot_bars(one))]
    bars.append(judged("idle transfer service", idle, "<", IDLE_GOAL, "of a core"))
    more = {"reads": [asdict(one) for one in reads], "slots": [asdict(one) for one in books]}
    raise typer.Exit(show_bars(bars, title="SSD tier and pool", as_json=as_json, more=more))


def _read_bar(one: ReadFigures) -> Bar:
    note = (
        f"{one.tier_bytes_per_s / 1e6:.0f} of {one.plain_bytes_per_s / 1e6:.0f} MB/s, "
        f"{one.tier_cpu_s_per_gb:.2f} CPU s/GB, the loop waits {one.max_lag_ms:.0f} ms at most"
    )
    note += "" if one.is_direct else "; this file system has no direct I/O"
    name = f"SSD reads, blocks of {one.block_bytes // MB} MB"
    return judged(name, one.ratio, ">=", READ_GOAL, "of plain", note=note)


def _slot_bars(one: SlotFigures) -> list[Bar]:
    return [
        judged(
            f"{what}, {one.num_slots} slots, {one.policy}", took, "<=", SLOT_GOAL_US, "µs a slot"
        )
        for what, took in (
            ("allocate", one.allocate_us),
            ("lease", one.lease_us),
            ("evict", one.evict_us),
        )
    ]


async def _idle_share() -> float:
    """CPU of a transfer service with workers attached that do nothing."""
    with tempfile.TemporaryDirectory() as folder:
        options = ClusterOptions(
            model="dummy:tiny",
            nodes=1,
            pool_bytes=64 * MB,
            log_level="WARNING",
            extra_env={"transfer": {"MOONPOOL_SSD_DIR": folder}},
        )
        async with LocalCluster(options) as cluster:
            await cluster.wait_ready()
            process = psutil.Process(cluster.process(NODE).pid)
            before = process.cpu_times()
            await asyncio.sleep(IDLE_S)
            after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return float(used_s) / IDLE_S
