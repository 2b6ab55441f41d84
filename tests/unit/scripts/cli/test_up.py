"""What `moonpool up` makes of its options."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scripts.cli.output import CommandError
from scripts.cli.up import announce, check_port, parse_size
from scripts.credentials.credential_set import CredentialSet
from scripts.launcher import state_file
from scripts.launcher.cluster import LocalCluster
from scripts.launcher.options import ClusterOptions
from shared.runtime.nats_access import NatsAccess


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("4G", 4 << 30), ("1.5GiB", 3 << 29), ("2gb", 2 << 30), ("4096", 4096)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1G", "0", "1X", "nan", "inf"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(CommandError, match="--pool-size"):
        parse_size(text)


def test_a_cluster_of_ones_own_on_the_port_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    url = "http://127.0.0.1:8123"
    state = state_file.describe(
        base_url=url, nats_url="n", admin_key="k", run_dir=tmp_path, nats_access=NatsAccess()
    )
    state_file.write(state)
    check_port("127.0.0.1", 8124)
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(CommandError, match=f"pid {state.pid}") as caught:
            check_port(host, 8123)
        assert "--port 0" in caught.value.hint


def test_json_names_the_credentials_and_shows_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SimpleNamespace(
        options=ClusterOptions(),
        base_url="http://127.0.0.1:8000",
        nats_url="nats://me:hidden-one@nats.lan:4222",
        redis_url="rediss://me:hidden-two@redis.lan:6379/0",
        credentials=CredentialSet(tmp_path / "set"),
        folder=SimpleNamespace(path=tmp_path),
        names=SimpleNamespace(all=()),
    )
    announce(cast(LocalCluster, cluster), "m", tmp_path / "nats-context.json", as_json=True)
    seen = capsys.readouterr()
    assert "hidden" not in seen.out + seen.err
    said = json.loads(seen.out)
    assert said["nats_url"] == "nats://nats.lan:4222"
    assert said["redis_url"] == "rediss://redis.lan:6379/0"
    assert said["credentials"] == str(tmp_path / "set")
