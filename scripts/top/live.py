"""The live screen: looks at the cluster at a steady pace, reads keys, restores the terminal."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from scripts.top.frame import Look, draw
from shared.overview.collector import Collector
from shared.runtime.clock import monotonic_s

QUIT = {"q", "Q", "\x03", "\x04", "\x1b"}


async def watch(collector: Collector, look: Look, *, interval_s: float) -> None:
    """Until the user ends it."""
    console = Console(highlight=False)
    keys: asyncio.Queue[str] = asyncio.Queue()
    with _keys_to(keys), Live(console=console, screen=True, auto_refresh=False) as live:
        looking = asyncio.ensure_future(_look_on(collector, look, interval_s, keys))
        try:
            while True:
                now_s = monotonic_s()
                size = console.size
                frame = draw(collector.overview, look, now_s, size.width, size.height)
                live.update(frame, refresh=True)
                key = await keys.get()
                if key in QUIT:
                    return
                if key == "s":
                    look.next_order()
                elif key == "p":
                    look.is_paused = not look.is_paused
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _look_on(
    collector: Collector, look: Look, interval_s: float, keys: asyncio.Queue[str]
) -> None:
    while True:
        if not look.is_paused:
            await collector.refresh()
            keys.put_nowait("")  # draw again
        await asyncio.sleep(interval_s)


@contextlib.contextmanager
def _keys_to(keys: asyncio.Queue[str]) -> Iterator[None]:
    """Single keys, not echoed. An end of the input is one to quit."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        read = os.read(fd, 64).decode("utf-8", "replace")
        for key in read or "\x04":
            keys.put_nowait(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, on_input)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
