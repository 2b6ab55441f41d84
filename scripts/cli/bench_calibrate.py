"""`moonpool bench calibrate`: what work costs here, as files for conductor and simulator."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from scripts.bench.calibrate import (
    CalibrationError,
    Cluster,
    Measured,
    calibrate,
    hardware_of,
    profile_of,
)
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.target import UP_HINT, Target, find_target, need_target
from scripts.launcher.readiness import ask_conductor


def calibrate_command(
    out: Annotated[Path, typer.Option(help="The simulator's file; the conductor's is beside it.")],
    url: Annotated[str | None, typer.Option(help="A cluster; else the one that runs here.")] = None,
    nats: Annotated[str | None, typer.Option(help="NATS of that cluster.")] = None,
    admin_key: Annotated[str | None, typer.Option(help="Of its gateway.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure prefill, decode, link and disk on an idle cluster and write them as a profile.

    Writes OUT for `moonpool simulate --hardware OUT`, and OUT with .conductor.json for
    MOONPOOL_PROFILE. Without a second node and the admin key the link is not measured.

    Examples:

      moonpool bench calibrate --out here.json

      moonpool simulate --trace conversation --hardware here.json
    """
    if out.suffix != ".json" or not out.parent.is_dir():
        raise CommandError("--out: must end in .json, in a folder that exists")
    target = find_target(url, nats, admin_key)
    if target is None:
        raise CommandError("no cluster runs on this machine", hint=f"{UP_HINT} with --url, --nats")
    cluster = asyncio.run(_look(need_target(target)))
    measured = _measure(cluster)
    hardware = hardware_of(measured, cluster, "measured by moonpool bench calibrate")
    conductor = out.with_suffix(".conductor.json")
    out.write_text(json.dumps(hardware, indent=2) + "\n", encoding="utf-8")
    conductor.write_text(json.dumps(profile_of(measured), indent=2) + "\n", encoding="utf-8")
    if not measured.has_link:
        console.print("link: not measured (it needs two nodes and the admin key)")
    console.print(f"wrote {out} and {conductor}", soft_wrap=True)
    if as_json:
        print_json({"hardware": hardware, "link_measured": measured.has_link})


def _measure(cluster: Cluster) -> Measured:
    with console.status("measuring") as status:
        try:
            return asyncio.run(calibrate(cluster, lambda step: status.update(f"measuring: {step}")))
        except CalibrationError as error:
            raise CommandError(str(error)) from None


async def _look(target: Target) -> Cluster:
    bus = await target.connect("calibrate")
    try:
        state = await ask_conductor(bus)
    finally:
        await bus.close()
    ready = [one for one in state.instances if one.state == "ready"] if state else []
    prefills = sorted((one for one in ready if one.service == "prefill"), key=lambda one: one.id)
    decodes = sorted((one for one in ready if one.service == "decode"), key=lambda one: one.id)
    if not prefills or not decodes:
        raise CommandError("the cluster has no ready prefill and decode instance")
    first = prefills[0]
    by_node = {one.node: one.id for one in reversed(prefills)}
    return Cluster(
        base_url=target.base_url,
        model=first.model,
        admin_key=target.admin_key,
        context_tokens=first.context_tokens,
        block_bytes=first.block_bytes,
        block_tokens=first.block_tokens,
        decode_capacity_tokens=decodes[0].capacity_tokens,
        prefills=tuple(sorted(by_node.values())),
        decode=decodes[0].id,
    )
