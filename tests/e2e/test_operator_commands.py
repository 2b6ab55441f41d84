"""pin, drop, replicate, flush and drain as an operator runs them, on a cluster that serves."""

import asyncio
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from scripts.cli import main
from tests.support.cluster import HostedCluster
from tests.support.command_line import command
from tests.support.deadline import wait_until
from tests.support.load import Load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
BLOCK = 256
COMMANDS = ("pin", "drop", "replicate", "flush", "drain", "role")


@pytest.fixture
def cluster(dummy_cluster: HostedCluster) -> HostedCluster:
    """The one of all tests: what is drained here is taken back, and all may be forgotten."""
    return dummy_cluster


def text_of(name: str) -> str:
    """Four full blocks of the dummy's tokens (one a byte)."""
    return f"{name} is what an operator moves around. ".ljust(40, "x") * 27


def serve(cluster: HostedCluster, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {
        "model": cluster.options.model,
        "prompt": prompt,
        "max_tokens": 2,
        "temperature": 0,
        **fields,
    }
    url = f"{cluster.base_url}/v1/completions"
    answer = httpx.post(url, json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    return dict(answer.json())


def lookup(cluster: HostedCluster, *arguments: str) -> dict[str, Any]:
    return command(cluster, "index", "lookup", *arguments, is_sure=False)


def where(cluster: HostedCluster, *arguments: str) -> dict[str, int]:
    """Blocks of a prompt by node, as the index says."""
    nodes = lookup(cluster, *arguments)["nodes"]
    return {one["node"]: one["blocks"] for one in nodes}


def serve_until_found(cluster: HostedCluster, text: str, *options: str, **fields: Any) -> str:
    """Serves it; the node that has all four blocks."""
    serve(cluster, text, **fields)
    found = wait_until(
        lambda: [node for node, blocks in where(cluster, text, *options).items() if blocks == 4],
        timeout_s=20,
        what="its blocks are in the index",
    )
    return str(found[0])


def test_pin_replicate_and_drop_move_a_prompt_around(cluster: HostedCluster) -> None:
    text = text_of("this")
    node = serve_until_found(cluster, text)
    pinned = command(cluster, "pin", text, "--ttl-s", "60")
    assert [(one["node"], one["num_blocks"]) for one in pinned["nodes"]] == [(node, 4)]
    assert command(cluster, "replicate", "--copies", "2", text)["ok"]
    both = wait_until(lambda: len(found := where(cluster, text)) == 2 and found, what="two copies")
    assert set(both.values()) == {4}
    flushed = command(cluster, "flush", node)
    assert flushed["nodes"][0]["kept_dram_blocks"] == 4, "it is pinned"
    pin_id = pinned["nodes"][0]["pin_id"]
    ended = command(cluster, "pin", "--end", pin_id, "--node", node)
    assert ended["nodes"][0]["pinned_blocks"] == 0
    again = command(cluster, "pin", "--end", pin_id, "--node", node)
    assert (again["ok"], again["nodes"][0]["ok"]) == (False, False)
    assert pin_id in again["nodes"][0]["problem"]
    keys = lookup(cluster, text)["keys"]
    assert len(keys) == 4 * 32
    dropped = command(cluster, "drop", "--keys", keys, "--keep", "1")
    assert {one["num_dram_blocks"] for one in dropped["nodes"]} == {3}
    wait_until(lambda: set(where(cluster, text).values()) == {1}, what="one block is left")
    assert command(cluster, "replicate", "--copies", "0", "--keys", keys[:32])["nodes"] == []
    wait_until(lambda: not where(cluster, text), what="none is left")


def test_a_salt_is_another_prompt_and_tokens_are_the_same_one(cluster: HostedCluster) -> None:
    text = text_of("that")
    serve_until_found(cluster, text, "--salt", "s1", cache_salt="s1")
    assert where(cluster, text) == {}
    url = f"{cluster.base_url}/tokenize"
    asked = {"model": cluster.options.model, "prompt": text}
    ids = httpx.post(url, json=asked, timeout=30, trust_env=False).json()["tokens"]
    tokens = ",".join(map(str, ids))
    by_tokens = lookup(cluster, "--tokens", tokens, "--salt", "s1")
    assert by_tokens["keys"] == lookup(cluster, text, "--salt", "s1")["keys"]
    assert command(cluster, "drop", text)["ok"] is False, "without the salt nothing is found"
    assert command(cluster, "drop", "--tokens", tokens, "--salt", "s1")["ok"]
    wait_until(lambda: not where(cluster, text, "--salt", "s1"), what="it is gone")


def test_flush_empties_all_and_answers_stay_the_same(cluster: HostedCluster) -> None:
    text = text_of("those")
    before = serve(cluster, text)["choices"]
    node = serve_until_found(cluster, text)
    asyncio.run(Load(cluster).all_is_given_back())
    flushed = command(cluster, "flush", "--all")
    assert {one["node"]: one["num_dram_blocks"] for one in flushed["nodes"]}[node] >= 4
    assert all(one["kept_dram_blocks"] == 0 for one in flushed["nodes"])
    wait_until(lambda: not where(cluster, text), what="the index knows it")
    answer = serve(cluster, text)
    assert answer["choices"] == before
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_drained_node_serves_nobody_until_it_is_back(cluster: HostedCluster) -> None:
    text = text_of("these")
    node = serve_until_found(cluster, text)
    serve(cluster, text)
    other = ({"node-1", "node-2"} - {node}).pop()
    drained = command(cluster, "drain", node)
    assert (drained["ok"], drained["node"]) == (True, node)
    assert {one["state"] for one in drained["instances"]} == {"draining"}
    assert {one["service"] for one in drained["instances"]} == {"prefill", "decode"}
    # Its hot prompt is on the other node, which serves alone now.
    wait_until(lambda: where(cluster, text).get(other) == 4, what="the other node has it")
    problems = command(cluster, "status", is_sure=False)["problems"]
    assert f"{node} is draining" in problems
    for number in range(4):
        assert serve(cluster, text_of(f"n{number}"))["usage"]["completion_tokens"] == 2
    seen = command(cluster, "status", is_sure=False)
    mine = [one for one in seen["instances"] if one["node"] == node]
    assert [one["running"] + one["queued_requests"] for one in mine] == [0, 0]
    again = command(cluster, "drain", node, "--undo")
    assert {one["state"] for one in again["instances"]} == {"ready"}
    cluster.wait_ready()
    assert command(cluster, "status", is_sure=False)["ok"]


def test_one_instance_is_drained_and_taken_back(cluster: HostedCluster) -> None:
    drained = command(cluster, "drain", "decode-1")
    assert [(one["id"], one["state"]) for one in drained["instances"]] == [("decode-1", "draining")]
    assert drained["node"] is None
    assert serve(cluster, text_of("one"))["choices"]
    assert command(cluster, "drain", "decode-1", "--undo")["instances"][0]["state"] == "ready"
    cluster.wait_ready()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("drain", "node-9"), ("no instance or node 'node-9'", "decode-1, decode-2, node-1")),
        (("drain", "gateway-1"), ("is a gateway", "SIGTERM")),
        (("flush", "node-9"), ("no node 'node-9'", "node-1, node-2")),
        (("flush",), ("which nodes?", "--all")),
        (("pin",), ("which prompt?", "--tokens")),
        (("pin", "short"), ("no full block", "longer")),
        (("drop", "x" * 300, "--keep", "1"), ("1 full blocks", "fewer")),
        (("drop", "x" * 300, "--keys", "00" * 16), ("which prompt?", "one of them")),
        (("drop", "--tokens", "1,b"), ("--tokens 1,b",)),
        (("drop", "--tokens", "5 " * 300), ("no node holds any", "--salt")),
        (("replicate", "--copies", "2", "--tokens", "6 " * 300), ("no node has all",)),
        (("pin", "--end", "abc"), ("--node",)),
    ],
)
def test_errors_say_what_to_do(
    cluster: HostedCluster, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = command(cluster, *arguments)
    assert said["ok"] is False
    text = said["error"]["message"] + said["error"]["hint"]
    assert all(word in text for word in words), text
    assert said["error"]["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("pin", "x" * 300),
        ("drop", "x" * 300),
        ("replicate", "--copies", "1", "x" * 300),
        ("flush", "--all"),
        ("drain", "node-1"),
        ("role", "decode-1", "prefill"),
    ],
)
def test_nothing_is_done_without_a_yes(cluster: HostedCluster, arguments: tuple[str, ...]) -> None:
    said = command(cluster, *arguments, is_sure=False)
    assert said["ok"] is False
    assert "not done" in said["error"]["message"]
    assert "--yes" in said["error"]["hint"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str) -> None:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(main.make_app(name), [name, "--help"])
    assert done.exit_code == 0
    for word in ("Examples", "--json", "--yes"):
        assert word in done.stdout
