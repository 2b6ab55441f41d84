"""The command `moonpool`: finds the commands, turns their errors into clear lines and codes."""

import importlib.metadata
import logging
import sys
from typing import Annotated

import typer

from scripts.cli import (
    assess,
    bench,
    chat,
    credentials,
    demo,
    doctor,
    drain,
    drop,
    flush,
    index,
    node,
    pin,
    replay,
    replicate,
    restart,
    role,
    simulate,
    status,
    top,
    up,
)
from scripts.cli.output import CommandError, print_json, report_error
from scripts.launcher.errors import LaunchError

USAGE_CODE = 2
USAGE_HINT = "stderr says which; `--help` lists them"

app = typer.Typer(
    name="moonpool",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    up.up,
    node.node,
    chat.chat,
    demo.demo,
    status.status,
    top.top,
    role.role,
    drain.drain,
    restart.restart,
    pin.pin,
    drop.drop,
    replicate.replicate,
    flush.flush,
    doctor.doctor,
    simulate.simulate,
    replay.replay,
    assess.assess,
    credentials.credentials,
):
    app.command()(command)
app.add_typer(bench.app, name="bench")
app.add_typer(index.app, name="index")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"moonpool {importlib.metadata.version('moonpool')}")
        raise typer.Exit


@app.callback()
def moonpool(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """LLM serving with prefill and decode apart and one KV cache for the whole cluster.

    Start with [bold]moonpool up[/], then in a second terminal [bold]moonpool demo[/] or
    [bold]moonpool chat[/].
    """


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)
    is_json = "--json" in sys.argv
    try:
        app(prog_name="moonpool")
    except (CommandError, LaunchError) as error:
        report_error(error.message, error.hint, as_json=is_json)
        raise SystemExit(1) from None
    except SystemExit as end:
        if end.code == USAGE_CODE and is_json:
            print_json({"ok": False, "error": {"message": "bad arguments", "hint": USAGE_HINT}})
        raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
