"""`moonpool bench transfer`: how KV moves, beside memcpy and beside Mooncake."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from scripts.bench.bars import Bar
from scripts.bench.transfer_raw import RawOptions, RawReport, measure_raw
from scripts.bench.transfer_store import StoreOptions, StoreReport, measure_store
from scripts.cli.bench_output import show_bars
from scripts.cli.output import CommandError, console
from shared.runtime.settings import CommonSettings

GROUPS = ("raw", "store")
ROUNDS, QUICK_ROUNDS = 11, 2
TMPFS = Path("/dev/shm")


def transfer(
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"A group of bars: {', '.join(GROUPS)}. May be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small pools, two rounds: does it run at all?")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"Of every variant; {ROUNDS} unless quick.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure how KV moves between two processes, and between two nodes through the services.

    raw: scattered blocks of 1, 16 and 64 MiB from one process' slots to another's, over shared
    memory beside memcpy in one thread, and over TCP beside Mooncake's transfer engine. store: put
    and get of batches of 16 MiB blocks through two transfer services and the index, beside
    Mooncake's store, and the median time of a block of 4 KiB. Mooncake is set up by `moonpool bench
    --setup-peers mooncake`; bars whose peer is absent stay open. Needs 1.5 GB in /dev/shm. Exit
    code 0 only if every bar that could be measured is ok.

    Examples:

      moonpool bench transfer --quick

      moonpool bench transfer --only raw --json
    """
    names = only or list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise CommandError(f"--only {unknown[0]}: no such group", hint=f"take {', '.join(GROUPS)}")
    count = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    bars: list[Bar] = []
    more: dict[str, Any] = {}
    load_before = os.getloadavg()[0]
    with _tmpfs_folder() as folder, console.status("starting") as status:
        if "raw" in names:
            raw = measure_raw(_raw_options(folder, count, is_quick=quick), status.update)
            bars += raw.bars
            more["raw"] = [variant.as_json() for variant in raw.variants]
            _show_raw(raw, is_json=as_json)
        if "store" in names:
            store = asyncio.run(measure_store(_store_options(folder, count, quick), status.update))
            bars += store.bars
            more["store"] = store.as_json()
            _show_store(store, is_json=as_json)
    title = (
        f"transfer, {count} rounds; load {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    raise typer.Exit(show_bars(bars, title=title, as_json=as_json, more=more))


def _raw_options(folder: Path, rounds: int, *, is_quick: bool) -> RawOptions:
    cache_dir = CommonSettings().cache_dir
    if is_quick:
        return RawOptions(folder, cache_dir, (1, 16), pool_mib=64, moved_mib=32, rounds=rounds)
    return RawOptions(folder, cache_dir, rounds=rounds)


def _store_options(folder: Path, rounds: int, is_quick: bool) -> StoreOptions:
    cache_dir = CommonSettings().cache_dir
    if is_quick:
        return StoreOptions(
            folder, cache_dir, block_mib=1, num_blocks=8, num_small=50, rounds=rounds
        )
    return StoreOptions(folder, cache_dir, rounds=rounds)


def _show_raw(report: RawReport, *, is_json: bool) -> None:
    table = Table(title=f"bytes alone, {report.copier} copy", title_justify="left")
    for column in ("blocks", "GB/s", "CPU s/GB"):
        table.add_column(column, justify="left" if column == "blocks" else "right")
    for variant in report.variants:
        if variant.seconds.failure:
            table.add_row(variant.name, "-", "-")
        else:
            table.add_row(variant.name, f"{variant.gb_per_s:.2f}", f"{variant.cpu_s_per_gb:.3f}")
    Console(stderr=is_json, highlight=False).print(table)


def _show_store(report: StoreReport, *, is_json: bool) -> None:
    table = Table(title="through the services", title_justify="left")
    for column in ("what", "value"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, value in report.rows():
        table.add_row(name, value)
    Console(stderr=is_json, highlight=False).print(table)


@contextmanager
def _tmpfs_folder() -> Iterator[Path]:
    folder = TMPFS / f"moonpool-bench-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise CommandError(f"{TMPFS}: {error.strerror}", hint="a tmpfs is needed there") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
