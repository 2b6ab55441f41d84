"""`python -m scripts.credentials FOLDER`: what `moonpool credentials` does, for containers."""

import argparse
import sys
from pathlib import Path

from scripts.credentials.credential_set import (
    DEFAULT_HOSTS,
    CredentialSet,
    make_set,
    remove_unfinished,
    write_nats_context,
)
from scripts.launcher.errors import LaunchError
from shared.messages.access import ADMIN
from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles


def main() -> None:
    parser = argparse.ArgumentParser(prog="credentials", description="Make a set of credentials.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", default=",".join(DEFAULT_HOSTS), help="names of the servers")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave a whole set, make an unfinished one anew",
    )
    parser.add_argument(
        "--volumes", action="store_true", help="readable by all: each folder is a volume"
    )
    parser.add_argument("--nats-url", help="also write a context of the nats CLI, for the operator")
    parser.add_argument("--nats-ca", type=Path, help="where that CLI finds the CA")
    given = parser.parse_args()
    made = CredentialSet(given.folder)
    if given.keep and made.is_whole:
        return
    try:
        if given.keep:
            made.refuse_older()
            remove_unfinished(given.folder)
        hosts = [host for host in given.hosts.split(",") if host]
        make_set(given.folder, hosts=hosts, is_readable_by_all=given.volumes)
        if given.nats_url:
            tls = TlsFiles(given.nats_ca or made.ca)
            access = NatsAccess(ADMIN, made.password(ADMIN), tls)
            path = given.folder / ADMIN / "nats-context.json"
            write_nats_context(access, given.nats_url, "moonpool", path)
    except (LaunchError, OSError) as error:
        sys.stderr.write(f"credentials: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
