"""`python -m scripts.credentials FOLDER [--hosts a,b] [--keep] [--volumes]`: needs no CLI extra."""

import argparse
import sys
from pathlib import Path

from scripts.credentials.credential_set import DEFAULT_HOSTS, CredentialSet, make_set
from scripts.launcher.errors import LaunchError


def main() -> None:
    parser = argparse.ArgumentParser(prog="credentials", description="Make a set of credentials.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", default=",".join(DEFAULT_HOSTS), help="names of the servers")
    parser.add_argument("--keep", action="store_true", help="leave a whole set as it is")
    parser.add_argument(
        "--volumes", action="store_true", help="readable by all: each folder is a volume"
    )
    given = parser.parse_args()
    if given.keep and CredentialSet(given.folder).is_whole:
        return
    try:
        hosts = [host for host in given.hosts.split(",") if host]
        make_set(given.folder, hosts=hosts, is_readable_by_all=given.volumes)
    except (LaunchError, OSError) as error:
        sys.stderr.write(f"credentials: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
