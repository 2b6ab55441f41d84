"""`moonpool replay`: a trace played against a live cluster."""

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import Progress

from scripts.charts.files import check_plot, write_charts
from scripts.cli.output import CommandError, console, print_json
from scripts.cli.target import UP_HINT, Target, conductor_state, find_target, need_target
from scripts.replay.beside import beside, load_costs, simulate_plan
from scripts.replay.coupled import COUPLED, POLICY_OF_COUPLED, as_coupled
from scripts.replay.measures import measures_of
from scripts.replay.plan import Plan, PlanSettings, make_plan
from scripts.replay.player import Chooser, Player, Run, key_headers
from scripts.replay.show import replay_charts, replay_table
from scripts.replay.sweep import sweep, sweep_table
from scripts.simulate.traces import TRACE_HELP, load_trace
from shared.scheduling.policies.registry import POLICIES
from shared.scheduling.slo import Slo
from shared.simulator.trace import TraceRequest

MODEL_TIMEOUT_S = 10.0


def replay(
    trace: Annotated[str, typer.Option(help=TRACE_HELP)],
    url: Annotated[str | None, typer.Option(help="A cluster; else the one that runs here.")] = None,
    admin_key: Annotated[str | None, typer.Option(help="Of its gateway; for --compare.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Only so many, the first.")] = None,
    scale: Annotated[float, typer.Option(min=0.01, help="Divide all lengths by this.")] = 1.0,
    speed: Annotated[float, typer.Option(min=0.01, help="Arrivals so much faster.")] = 1.0,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="For a trace that counts in ticks (conversation: 3 s): requests come over "
            "their tick, not all at once.",
        ),
    ] = False,
    max_output: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 1 << 20,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies, one run each, separated by commas; coupled: workers that do both."
        ),
    ] = None,
    ttft_slo: Annotated[float, typer.Option(min=0, help="Seconds; for `within targets`.")] = 30.0,
    tbt_slo: Annotated[float, typer.Option(min=0, help="Seconds.")] = 0.2,
    pd_sweep: Annotated[
        int, typer.Option(min=0, help="Advise how to split so many instances (simulated).")
    ] = 0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also in the simulator, and how far that is off.")
    ] = False,
    hardware: Annotated[
        str | None,
        typer.Option(help="Of --pd-sweep, --simulate: what `moonpool bench calibrate` wrote."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Charts, to .html or .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Play a trace against a live cluster: same prefixes, same lengths, same arrivals.

    Measures TTFT, TBT, inter-token latency, where cached tokens came from, refusals, and how right
    the conductor's predictions were. Answers are forced to the recorded length.

    Examples:

      moonpool replay --trace conversation --requests 200 --scale 16 --speed 2

      moonpool replay --trace t.jsonl --compare coupled,moonpool --plot out.html

      moonpool replay --trace t.jsonl --pd-sweep 8 --hardware here.json
    """
    check_plot(plot)
    policies = _policies(compare)
    given = load_trace(trace)[:requests]
    settings = PlanSettings(scale, speed, is_spread=spread, max_output_tokens=max_output)
    if pd_sweep:
        _advise(given, settings, pd_sweep, hardware, Slo(ttft_slo, tbt_slo), as_json=as_json)
        return
    costs = load_costs(hardware) if simulate else None
    target = find_target(url, admin_key=admin_key)
    if target is None:
        raise CommandError("no cluster runs on this machine", hint=f"{UP_HINT} with --url")
    runs, plan = asyncio.run(_play_all(target, given, settings, policies))
    found = [measures_of(name, run, Slo(ttft_slo, tbt_slo)) for name, run in runs.items()]
    if costs is not None:
        state = asyncio.run(conductor_state(need_target(target), "replay"))
        for measured, policy in zip(found, policies, strict=True):
            if policy == COUPLED:
                continue
            outcome = simulate_plan(plan, state, costs, policy)
            measured["simulated"] = beside(measured, outcome, plan, state)
    if plot is not None:
        write_charts(plot, f"{trace}, replayed", replay_charts(runs))
    ok = not any(one["failed"] for one in found)
    if as_json:
        print_json(
            {
                "ok": ok,
                "trace": trace,
                "scale": scale,
                "speed": speed,
                "spread": spread,
                "cut": plan.num_cut,
                "runs": found,
            }
        )
    else:
        title = f"{trace}: {len(given)} requests, lengths / {scale:g}, speed x {speed:g}"
        Console(highlight=False).print(replay_table(title, found))
    _warn(found, plan)
    if not ok:
        raise typer.Exit(1)


def _policies(compare: str | None) -> list[str | None]:
    names = [name.strip() for name in (compare or "").split(",") if name.strip()]
    for name in names:
        if name not in POLICIES and name != COUPLED:
            raise CommandError(
                f"--compare: {name!r} is no policy",
                hint=f"one of {', '.join((*POLICIES, COUPLED))}",
            )
    return list(dict.fromkeys(names)) or [None]


async def _play_all(
    target: Target,
    given: list[TraceRequest],
    settings: PlanSettings,
    policies: list[str | None],
) -> tuple[dict[str, Run], Plan]:
    model, context_tokens = await _model(target)
    runs: dict[str, Run] = {}
    plan = Plan((), 0)
    for policy in policies:
        # Other tokens in each run, so that none hits what another left in the pools.
        salt = secrets.token_hex(4)
        plan = make_plan(given, replace(settings, context_tokens=context_tokens, salt=salt))
        name = policy or "as deployed"
        if policy == COUPLED:
            async with as_coupled(need_target(target)) as chooser:
                player = _player(target, model, POLICY_OF_COUPLED, chooser)
                runs[name] = await _play(player, plan, name)
        else:
            runs[name] = await _play(_player(target, model, policy), plan, name)
    return runs, plan


def _player(
    target: Target, model: str, policy: str | None, chooser: Chooser | None = None
) -> Player:
    return Player(
        target.base_url,
        model,
        target.admin_key,
        policy=policy,
        chooser=chooser,
        watches_machine=True,
    )


async def _play(player: Player, plan: Plan, name: str) -> Run:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=len(plan.requests))
        return await player.play(plan.requests, lambda: progress.advance(task))


async def _model(target: Target) -> tuple[str, int]:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=MODEL_TIMEOUT_S) as http:
            headers = key_headers(target.admin_key)
            answer = await http.get(f"{target.base_url}/v1/models", headers=headers)
        models = answer.raise_for_status().json()["data"]
        return str(models[0]["id"]), int(models[0]["max_model_len"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise CommandError(
            f"{target.base_url} names no model: {error or type(error).__name__}",
            hint="is the cluster ready? see `moonpool status`",
        ) from None


def _warn(found: list[dict[str, Any]], plan: Plan) -> None:
    if plan.num_cut:
        console.print(f"{plan.num_cut} prompts were longer than the model's context and were cut")
    for one in found:
        if one["is_client_the_bottleneck"]:
            console.print(
                f"{one['run']}: the client was the bottleneck (p99 {one['client_lag_p99_s']:.3f} s "
                f"late, its loop {one['client_loop_lag_p99_s']:.3f} s): these times are its own; "
                "lower --speed, or play from another machine"
            )
        if not one["machine"]["is_steady"]:
            console.print(
                f"{one['run']}: the machine changed its speed by {one['machine']['moved']:.0%} (a "
                "fixed product took so much longer at one time than at another): its times, "
                "errors of prediction and comparisons prove nothing; play it again on a quiet one"
            )
        for error, count in one["failed"].items():
            console.print(f"{one['run']}: {count} failed: {error}", markup=False)


def _advise(
    given: list[TraceRequest],
    settings: PlanSettings,
    num_instances: int,
    hardware: str | None,
    slo: Slo,
    *,
    as_json: bool,
) -> None:
    if hardware is None:
        raise CommandError(
            "--pd-sweep: needs --hardware", hint="`moonpool bench calibrate` writes such a file"
        )
    if num_instances < 2:
        raise CommandError("--pd-sweep: must be at least 2")
    splits = sweep(given, settings, num_instances, hardware, slo)
    best = max(splits, key=lambda one: (one["effective"], -one["mean_ttft_s"]))
    if as_json:
        print_json({"splits": splits, "best": best})
    else:
        Console(highlight=False).print(sweep_table(splits, best))
