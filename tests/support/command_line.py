"""A command run in the test's own process against a hosted cluster."""

import json
from typing import Any

from typer.testing import CliRunner

from scripts.cli import main
from scripts.cli.output import CommandError
from tests.support.cluster import HostedCluster
from tests.support.processes import nats_variables


def command(cluster: HostedCluster, *arguments: str, is_sure: bool = True) -> dict[str, Any]:
    """The JSON object of a command; its exit code and its `ok` say the same.

    `is_sure` gives --yes.
    """
    own = nats_variables(cluster.cluster.nats_access)
    variables = {f"MOONPOOL_{name.upper()}": value for name, value in own.items()}
    sure = ["--yes"] if is_sure else []
    done = CliRunner(env=variables | {"MOONPOOL_NATS_URL": cluster.nats_url}).invoke(
        main.make_app(arguments[0]), [*arguments, *sure, "--json"]
    )
    if isinstance(done.exception, CommandError):
        error = {"message": done.exception.message, "hint": done.exception.hint}
        return {"ok": False, "error": error}
    assert done.stdout, (done.stderr, done.exception)
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["ok"] == (done.exit_code == 0)
    return said
