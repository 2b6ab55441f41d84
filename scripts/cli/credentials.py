"""`moonpool credentials`: a set of credentials for servers of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from scripts.cli.output import console, print_json
from scripts.credentials.credential_set import DEFAULT_HOSTS, make_set
from shared.messages.access import SERVICES


def credentials(
    folder: Annotated[Path, typer.Argument(help="New folder for the set.")],
    hosts: Annotated[
        str, typer.Option(help="Names and addresses of the servers, for their certificates.")
    ] = ",".join(DEFAULT_HOSTS),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Make a development set of credentials: NATS users, a Redis ACL, a CA and certificates.

    Each service gets a user that may do only what that service does. `moonpool up` makes a set of
    its own at every start; this one is for servers that run elsewhere.

    Examples:

      moonpool credentials ~/moonpool-credentials --hosts nats.lan,redis.lan

      moonpool up --nats nats://nats.lan:4222 --redis rediss://redis.lan:6379
      --credentials ~/moonpool-credentials
    """
    made = make_set(folder.resolve(), hosts=[host for host in hosts.split(",") if host])
    if as_json:
        print_json({"ok": True, "folder": str(made.folder), "services": list(SERVICES)})
        return
    console.print(
        f"made {made.folder}\n"
        "  NATS: include nats/users.conf in its configuration, with nats/cert.pem and key.pem "
        "(and ca.pem, for the routes of a cluster)\n"
        "  Redis: aclfile redis/users.acl, with redis/cert.pem and key.pem\n"
        "  a service: MOONPOOL_SECRETS_DIR=<folder>/<service>, "
        "MOONPOOL_NATS_CA=<folder>/<service>/ca.pem\n"
        "  you: MOONPOOL_SECRETS_DIR=<folder>/admin, MOONPOOL_NATS_CA=<folder>/admin/ca.pem",
        markup=False,
        soft_wrap=True,
    )
