"""`moonpool assess`: whether sharing a KV cache pays, from request logs; needs no cluster."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from scripts.assess.analysis import assess as analyse
from scripts.assess.machine import measure_machine, serve
from scripts.assess.report import as_json as report_json
from scripts.assess.report import lines_of, write_page
from scripts.assess.requests import read_prompts
from scripts.cli.output import CommandError, console, print_json
from scripts.simulate.traces import TRACE_HELP, load_trace
from shared.simulator.hardware import load_hardware


def assess(
    trace: Annotated[str | None, typer.Option(help=TRACE_HELP)] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSON lines of OpenAI requests; needs --tokenizer.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json or its folder.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="Requests a second without times.")] = 1.0,
    hardware: Annotated[str, typer.Option(help="A profile's name or file.")] = "a800-llama3-70b",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the pool.")] = 8,
    pool_tokens: Annotated[int, typer.Option(min=512, help="Of each node.")] = 3_000_000,
    link: Annotated[
        str | None, typer.Option(help="host:port of a peer that runs --serve: measured, used.")
    ] = None,
    serve_port: Annotated[
        int | None, typer.Option("--serve", help="Be the peer of another machine's --link.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The report, one .html file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say whether sharing KV pays for your requests on your machines, and why.

    From a trace, or from OpenAI requests that are tokenised here. Measures this machine's memory,
    disk and (with --link) its way to a peer, and simulates the rest.

    Examples:

      moonpool assess --trace conversation --nodes 8 --out report.html

      moonpool assess --requests log.jsonl --tokenizer ./model --hardware here.json

      moonpool assess --serve 7777        # on the peer, then --link peer:7777 here
    """
    if serve_port is not None:
        console.print(f"taking what peers send on port {serve_port}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve("0.0.0.0", serve_port))
        return
    if (trace is None) == (requests is None):
        raise CommandError("give either --trace or --requests")
    if out is not None and (out.suffix != ".html" or not out.parent.is_dir()):
        raise CommandError("--out: must end in .html, in a folder that exists")
    by_block: dict[int, float] | None = None
    if requests is not None:
        if tokenizer is None:
            raise CommandError("--requests: needs --tokenizer", hint="of the model to be served")
        if not requests.is_file():
            raise CommandError(f"--requests: there is no file {requests}")
        prompts = read_prompts(requests, tokenizer, rate)
        given, by_block = prompts.requests, prompts.hit_by_block_tokens
    else:
        given = load_trace(trace or "")
    try:
        machine_profile = load_hardware(hardware)
    except ValueError as error:
        raise CommandError(str(error)) from None
    with console.status("measuring this machine") as status:
        machine = measure_machine(link, (out or Path.cwd()).parent)
        if machine.link_bytes_per_s is not None:
            machine_profile = replace(machine_profile, link_bytes_per_s=machine.link_bytes_per_s)
        found = analyse(
            given,
            machine_profile,
            nodes,
            pool_tokens,
            machine.disk_bytes_per_s,
            by_block,
            lambda name: status.update(f"simulating: {name}"),
        )
    if out is not None:
        write_page(out, f"Does sharing pay? {trace or requests}", found, machine)
    if as_json:
        print_json(report_json(found, machine))
    else:
        for line in lines_of(found):
            print(line)
