"""The command `moonpool`: finds the commands, turns their errors into clear lines and codes."""

import importlib
import importlib.metadata
import logging
import sys
from typing import Annotated

import typer

from scripts.cli.output import CommandError, print_json, report_error
from scripts.launcher.errors import LaunchError

USAGE_CODE = 2
USAGE_HINT = "stderr says which; `--help` lists them"

COMMANDS = (
    "up",
    "node",
    "chat",
    "demo",
    "explain",
    "bill",
    "status",
    "top",
    "role",
    "drain",
    "restart",
    "pin",
    "drop",
    "replicate",
    "flush",
    "doctor",
    "simulate",
    "replay",
    "assess",
    "credentials",
)
"""Each is the function of that name in the module of that name."""
GROUPS = ("bench", "index")
"""Each is the `app` of the module of that name."""


def make_app(*names: str) -> typer.Typer:
    """The command line with these commands; without a name, with all of them."""
    app = typer.Typer(
        name="moonpool",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(moonpool)
    for name in names or COMMANDS + GROUPS:
        module = importlib.import_module(f"scripts.cli.{name}")
        if name in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command()(getattr(module, name))
    return app


def asked_in(arguments: list[str]) -> tuple[str, ...]:
    """The command that is asked for: the others are not even imported. Empty when none is known."""
    first = next((one for one in arguments if not one.startswith("-")), "")
    return (first,) if first in COMMANDS + GROUPS else ()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"moonpool {importlib.metadata.version('moonpool')}")
        raise typer.Exit


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
    app = make_app(*asked_in(sys.argv[1:]))
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
