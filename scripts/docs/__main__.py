"""`python -P -m scripts.docs`: writes docs/nats.md anew, with the outputs of a cluster that it
starts and stops."""

import asyncio
import sys
from pathlib import Path

import httpx

from scripts.docs.nats_outputs import collect
from scripts.docs.nats_page import render
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions

PAGE = Path(__file__).parents[2] / "docs" / "nats.md"
OPTIONS = ClusterOptions(
    model="dummy:tiny",
    pool_bytes=32 << 20,
    threads=1,
    drain_timeout_s=2.0,
    # Under it every message is sent that there is.
    extra_env={"conductor": {"MOONPOOL_ADMISSION": "baseline"}},
)


async def make() -> None:
    async with LocalCluster(OPTIONS) as cluster, httpx.AsyncClient(trust_env=False) as http:
        await cluster.wait_ready()
        outputs = await collect(cluster, http)
    PAGE.write_text(render(outputs))


if __name__ == "__main__":
    asyncio.run(make())
    sys.stderr.write(f"wrote {PAGE}\n")
