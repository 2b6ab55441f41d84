"""Which processes a cluster has and what they are told."""

from pathlib import Path

import pytest

from scripts.launcher.layout import Listening, Surroundings, names_of, specs_of, worker_threads
from scripts.launcher.options import ClusterOptions

AROUND = Surroundings(
    nats_url="nats://127.0.0.1:1",
    redis_url="redis://127.0.0.1:2/0",
    shared_dir=Path("/dev/shm/x"),
    admin_key="key",
    gateway_sockets=(Listening(3, 9),),
)


def env_of(options: ClusterOptions, name: str) -> dict[str, str]:
    specs = {spec.name: spec for spec in specs_of(options, AROUND)}
    return dict(specs[name].env)


def test_every_member_has_a_process_of_its_name() -> None:
    options = ClusterOptions(nodes=3, prefill_per_node=2, decode_per_node=1)
    specs = list(specs_of(options, AROUND))
    assert [spec.name for spec in specs] == list(names_of(options).all)
    assert [spec.env["MOONPOOL_INSTANCE_ID"] for spec in specs] == [spec.name for spec in specs]
    assert len([spec for spec in specs if spec.argv[-1] == "services.prefill"]) == 6


def test_workers_fill_one_node_after_the_other() -> None:
    two = ClusterOptions(nodes=2, prefill_per_node=2)
    nodes = [env_of(two, f"prefill-{number}")["MOONPOOL_NODE"] for number in range(1, 5)]
    assert nodes == ["node-1", "node-1", "node-2", "node-2"]
    options = ClusterOptions(nodes=2)
    assert env_of(options, "decode-2")["MOONPOOL_NODE"] == "node-2"


def test_a_node_that_joins_others_names_its_workers_after_itself() -> None:
    options = ClusterOptions(name="rack2", nodes=1, prefill_per_node=2, gateways=0)
    assert names_of(options).all == (
        "rack2", "rack2-prefill-1", "rack2-prefill-2", "rack2-decode-1"
    )  # fmt: skip
    around = Surroundings("nats://x", "", AROUND.shared_dir, "", ())
    env = {spec.name: spec.env for spec in specs_of(options, around)}
    assert env["rack2-prefill-2"]["MOONPOOL_NODE"] == "rack2"


@pytest.mark.parametrize(
    ("cores", "prefills", "decodes", "expected"),
    [(2, 2, 2, (1, 1)), (2, 1, 1, (2, 1)), (16, 2, 2, (8, 4)), (1, 4, 4, (1, 1))],
)
def test_threads_share_the_cores_out(
    cores: int, prefills: int, decodes: int, expected: tuple[int, int]
) -> None:
    assert worker_threads(cores, prefills, decodes) == expected


def test_only_cache_index_hears_of_redis_and_only_the_gateway_of_the_admin_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MOONPOOL_REDIS_URL", raising=False)
    monkeypatch.delenv("MOONPOOL_ADMIN_KEY", raising=False)
    specs = list(specs_of(ClusterOptions(), AROUND))
    assert [s.name for s in specs if "MOONPOOL_REDIS_URL" in s.env] == ["cache-index-1"]
    assert [s.name for s in specs if "MOONPOOL_ADMIN_KEY" in s.env] == ["gateway-1"]


def test_the_users_shell_does_not_name_all_processes_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOONPOOL_INSTANCE_ID", "mine")
    monkeypatch.setenv("MOONPOOL_NODE", "mine")
    assert env_of(ClusterOptions(), "gateway-1")["MOONPOOL_INSTANCE_ID"] == "gateway-1"
    assert "MOONPOOL_NODE" not in env_of(ClusterOptions(), "node-1")


def test_more_variables_go_to_a_service_or_to_one_process() -> None:
    options = ClusterOptions(extra_env={"prefill": {"A": "1"}, "prefill-2": {"A": "2"}})
    assert env_of(options, "prefill-1")["A"] == "1"
    assert env_of(options, "prefill-2")["A"] == "2"
    assert "A" not in env_of(options, "decode-1")


def test_unset_options_leave_the_services_defaults() -> None:
    env = env_of(ClusterOptions(), "prefill-1")
    assert not {"MOONPOOL_DTYPE", "MOONPOOL_BLOCK_TOKENS"} & set(env)
    env = env_of(ClusterOptions(dtype="bfloat16", block_tokens=64), "prefill-1")
    assert (env["MOONPOOL_DTYPE"], env["MOONPOOL_BLOCK_TOKENS"]) == ("bfloat16", "64")


def test_conductors_are_told_how_to_place_and_how_to_admit() -> None:
    given = {"MOONPOOL_POLICY": "random", "MOONPOOL_ADMISSION": "baseline"}
    env = env_of(ClusterOptions(policy="random", admission="baseline"), "conductor-1")
    assert given.items() <= env.items()
    assert not given.keys() & env_of(ClusterOptions(), "conductor-1").keys()


def test_a_gateway_is_given_its_socket_and_nobody_else_is() -> None:
    specs = list(specs_of(ClusterOptions(), AROUND))
    assert {spec.name: spec.fds for spec in specs if spec.fds} == {"gateway-1": (9,)}
    told = {spec.name: spec.env.get("MOONPOOL_HTTP_FD") for spec in specs}
    assert {name: fd for name, fd in told.items() if fd} == {"gateway-1": "9"}
