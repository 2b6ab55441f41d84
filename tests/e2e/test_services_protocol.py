"""Every service is a NATS micro service as the services specification (ADR-32) has it, and every
endpoint speaks JSON."""

import json
import re
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from scripts.docs.entries import Entry
from scripts.docs.nats_outputs import serve
from scripts.docs.nats_page import example_subject
from scripts.docs.subject_list import ENTRIES
from shared.messages import subjects
from shared.messages.common import ErrorCode
from shared.messages.envelope import decode
from shared.messages.error_numbers import ERROR_NUMBERS
from shared.runtime.bus import ErrorBody
from tests.support.api import Api
from tests.support.cluster import DUMMY_MODEL, HostedCluster
from tests.support.deadline import until, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
GATHER_S = 10.0
PROCESSES = {
    "gateway": 1, "conductor": 1, "cache-index": 1, "transfer": 2, "prefill": 2, "decode": 2
}  # fmt: skip
NAMES = [f"moonpool-{service}" for service in PROCESSES]
WITH_NODE = {"transfer", "prefill", "decode"}
WITH_MODEL = {"gateway", "prefill", "decode"}
STANDARD = {"type", "name", "id", "version", "metadata"}
SEMVER = re.compile(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"
)
NAME = re.compile(r"^[A-Za-z0-9_-]+$")
SECOND = timedelta(seconds=1)


def ask(cluster: HostedCluster, verb: str, name: str = "", id_: str = "") -> list[dict[str, Any]]:
    """All answers to $SRV.<verb>, of one kind or of one process."""
    subject = ".".join(part for part in ("$SRV", verb, name, id_) if part)
    count = 1 if id_ else PROCESSES.get(name.removeprefix("moonpool-"), sum(PROCESSES.values()))

    async def gather() -> list[dict[str, Any]]:
        client = cluster.cluster.bus.client
        found: list[bytes] = []

        async def on_answer(msg: Any) -> None:
            found.append(msg.data)

        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=on_answer)
        await client.publish(subject, b"", reply=inbox)
        await until(lambda: len(found) >= count, timeout_s=GATHER_S, what=f"{count} to {subject}")
        await subscription.unsubscribe()
        return [json.loads(one) for one in found]

    answers = cluster.call(gather())
    assert len(answers) == count
    return answers


def check_standard(said: dict[str, Any], verb: str) -> None:
    assert said["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
    assert said["name"] in NAMES
    assert NAME.match(said["name"])
    assert SEMVER.match(said["version"])
    assert isinstance(said["id"], str)
    assert said["id"]
    metadata = said["metadata"]
    assert all(isinstance(one, str) for pair in metadata.items() for one in pair)
    service = said["name"].removeprefix("moonpool-")
    assert metadata["role"] == service
    wanted = {"id", "incarnation"}
    wanted |= {"node"} if service in WITH_NODE else set()
    wanted |= {"model"} if service in WITH_MODEL else set()
    assert all(metadata[field] for field in wanted)


@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
def test_every_process_answers_all_three_subjects_of_a_verb(
    dummy_cluster: HostedCluster, verb: str
) -> None:
    everybody = ask(dummy_cluster, verb)
    for said in everybody:
        check_standard(said, verb)
    assert len({said["id"] for said in everybody}) == len(everybody)
    for name in NAMES:
        own = [said["id"] for said in everybody if said["name"] == name]
        assert {said["id"] for said in ask(dummy_cluster, verb, name)} == set(own)
        assert ask(dummy_cluster, verb, name, own[0])[0]["id"] == own[0]


def test_a_ping_has_the_standard_fields_alone(dummy_cluster: HostedCluster) -> None:
    assert all(set(said) == STANDARD for said in ask(dummy_cluster, "PING"))


def test_info_describes_the_service_and_each_endpoint(dummy_cluster: HostedCluster) -> None:
    for said in ask(dummy_cluster, "INFO"):
        assert set(said) == STANDARD | {"description", "endpoints"}
        assert said["description"]
        assert said["endpoints"]
        for endpoint in said["endpoints"]:
            assert set(endpoint) == {"name", "subject", "queue_group", "metadata"}
            assert NAME.match(endpoint["name"])
            assert endpoint["subject"].startswith("moonpool.")
            assert endpoint["queue_group"] == "q"
            assert all(isinstance(one, str) for one in endpoint["metadata"].values())
            assert all(endpoint["metadata"][what] for what in ("description", "request", "reply"))
            fields = json.loads(endpoint["metadata"]["schema"])
            assert "v" in fields


def test_stats_count_each_endpoint(dummy_cluster: HostedCluster) -> None:
    infos = {said["id"]: said for said in ask(dummy_cluster, "INFO")}
    for said in ask(dummy_cluster, "STATS"):
        assert set(said) == STANDARD | {"started", "endpoints"}
        started = datetime.fromisoformat(said["started"])
        assert started.utcoffset() == timedelta(0)
        assert started < datetime.now(started.tzinfo) + SECOND
        known = {(one["name"], one["subject"]) for one in infos[said["id"]]["endpoints"]}
        assert {(one["name"], one["subject"]) for one in said["endpoints"]} == known
        for one in said["endpoints"]:
            check_stats(one)


def check_stats(one: dict[str, Any]) -> None:
    numbers = ("num_requests", "num_errors", "processing_time", "average_processing_time")
    assert set(one) == {"name", "subject", "queue_group", "last_error", "data", *numbers}
    assert all(type(one[name]) is int and one[name] >= 0 for name in numbers)
    assert isinstance(one["last_error"], str)
    assert (one["num_errors"] == 0) == (one["last_error"] == "")
    assert one["data"]["running"] >= 0
    wanted = one["processing_time"] // one["num_requests"] if one["num_requests"] else 0
    assert one["average_processing_time"] == wanted


def test_an_error_is_counted_and_has_a_number(dummy_cluster: HostedCluster) -> None:
    subject = subjects.CONDUCTOR_CHANGE_REPLICA
    before = stats_of(dummy_cluster, subject)
    headers, data = request(dummy_cluster, subject, {"model": 5})
    assert int(headers["Nats-Service-Error-Code"]) == ERROR_NUMBERS[ErrorCode.BAD_REQUEST]
    assert "model" in headers["Nats-Service-Error"]
    assert decode(data, ErrorBody).error.field == "model"
    after = stats_of(dummy_cluster, subject)
    assert after["num_requests"] == before["num_requests"] + 1
    assert after["num_errors"] == before["num_errors"] + 1
    assert "model" in after["last_error"]


def stats_of(cluster: HostedCluster, subject: str) -> dict[str, Any]:
    said = ask(cluster, "STATS", "moonpool-conductor")[0]
    return next(one for one in said["endpoints"] if one["subject"] == subject)


def request(
    cluster: HostedCluster, subject: str, question: dict[str, Any]
) -> tuple[dict[str, str], bytes]:
    """Asked in JSON; the headers and the payload of the answer."""
    client = cluster.cluster.bus.client
    answer = cluster.call(client.request(subject, json.dumps(question).encode(), timeout=20))
    return dict(answer.headers or {}), answer.data


def endpoints(cluster: HostedCluster) -> list[dict[str, Any]]:
    return [one for said in ask(cluster, "INFO") for one in said["endpoints"]]


def entry_of(subject: str) -> Entry:
    for entry in ENTRIES:
        for pattern in entry.subjects:
            if re.fullmatch(re.sub(r"<[^>]+>", "[^.]+", re.escape(pattern)), subject):
                return entry
    raise AssertionError(f"{subject} is not in scripts/docs/subject_list.py")


def test_every_endpoint_is_documented_with_its_own_schemas(dummy_cluster: HostedCluster) -> None:
    found = endpoints(dummy_cluster)
    assert len({one["subject"] for one in found}) > 50
    for one in found:
        entry = entry_of(one["subject"])
        assert entry.reply is not None
        said = (one["metadata"]["request"], one["metadata"]["reply"])
        assert said == (entry.message.__name__, entry.reply.__name__), one["subject"]


def test_every_endpoint_refuses_in_json_what_is_wrong_in_json(
    dummy_cluster: HostedCluster,
) -> None:
    for one in endpoints(dummy_cluster):
        headers, data = request(dummy_cluster, one["subject"], {"v": 9})
        assert headers["Nats-Service-Error-Code"] == "400", one["subject"]
        error = json.loads(data)["error"]
        assert (error["code"], error["field"]) == ("bad_request", "v")
        assert error["message"] == headers["Nats-Service-Error"]


def test_every_example_is_answered_in_json(dummy_cluster: HostedCluster) -> None:
    async def served() -> Any:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await serve(dummy_cluster.cluster, http, seed=77)

    sample = dummy_cluster.call(served())
    for entry in ENTRIES:
        if entry.ask is None:
            continue
        assert entry.reply is not None
        subject = example_subject(entry)
        headers, data = request(dummy_cluster, subject, entry.ask(sample))
        assert "Nats-Service-Error-Code" not in headers, (subject, headers)
        assert data.startswith(b"{"), subject
        decode(data, entry.reply)


def test_the_life_of_a_request_can_be_followed_in_json(dummy_cluster: HostedCluster) -> None:
    events: list[dict[str, Any]] = []
    client = dummy_cluster.cluster.bus.client

    async def on_event(msg: Any) -> None:
        assert msg.data.startswith(b"{")
        events.append(json.loads(msg.data))

    async def follow() -> Any:
        subscription = await client.subscribe(subjects.trace("followed"), cb=on_event)
        await client.flush()
        return subscription

    subscription = dummy_cluster.call(follow())
    api = Api(dummy_cluster.base_url, dummy_cluster.admin_key, DUMMY_MODEL)
    headers = api.headers | {"x-request-id": "followed", "x-moonpool-trace": "1"}
    url = f"{api.base_url}/v1/completions"
    body = api.body([7] * 300)
    httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False).raise_for_status()
    wait_until(
        lambda: any(one["event"] == "finished" for one in events), what="the request's last event"
    )
    dummy_cluster.call(subscription.unsubscribe())
    names = [one["event"] for one in events]
    assert [name for name in names if name != "tokens"] == [
        "tokenised", "place", "placed", "finished"
    ]  # fmt: skip
    assert names.index("placed") < names.index("tokens") < names.index("finished")
    times = [one["since_start_s"] for one in events]
    assert times == sorted(times)
    assert len({one["request_id"] for one in events}) == 1
