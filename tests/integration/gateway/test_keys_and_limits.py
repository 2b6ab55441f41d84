"""Keys, tenants, limits and TLS of a gateway over real HTTP and NATS."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.credentials.certificates import Authority
from services.gateway import request_reader
from services.gateway.http_server import HttpServer
from shared.runtime.errors import ServiceError
from tests.integration.gateway.conftest import ADMIN_KEY, Rig, running_rig
from tests.support.deadline import until
from tests.support.fake_cluster import BLOCK_TOKENS, MODEL

pytestmark = pytest.mark.integration
KEYS = {
    "acme": {"keys": ["key-of-acme"], "max_in_flight": 1},
    "beta": {"keys": ["key-of-beta"], "max_priority": "normal"},
}
PROMPT = [1] * 2 * BLOCK_TOKENS


async def ask(rig: Rig, key: str | None = None, **more: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, **more}
    return await rig.http.post("/v1/completions", json=body, headers=headers)


async def test_every_endpoint_of_the_api_wants_a_key_and_health_wants_none(
    nats_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KEYS))
    async with running_rig(nats_url, api_keys_file=file) as rig:
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/explain"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", "/v1/bills/x"),
        ):
            refused = await rig.http.request(method, path, json={})
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
        for path in ("/live", "/health", "/ready", "/openapi.json"):
            assert (await rig.http.get(path)).status_code == 200
        assert (await ask(rig, "wrong")).status_code == 401
        assert (await ask(rig, "key-of-acme")).status_code == 200
        assert (await ask(rig, ADMIN_KEY)).status_code == 200
        assert (await ask(rig, "key-of-acme", policy="random")).status_code == 403
        assert (await ask(rig, "key-of-beta", priority="high")).status_code == 403
    assert "key-of-acme" not in caplog.text
    assert "wrong" not in caplog.text


async def test_tenants_share_no_block_and_no_bill_unless_the_deployment_says_so(
    nats_url: str,
) -> None:
    async with running_rig(nats_url, api_keys=json.dumps(KEYS)) as rig:
        for key in ("key-of-acme", "key-of-beta"):
            assert (await ask(rig, key)).status_code == 200
        acme, beta = rig.cluster.get("p0").runs
        assert acme.chain != beta.chain
        assert acme.namespace != beta.namespace
        name = acme.ref.request_id
        for key, status in (("key-of-acme", 200), ("key-of-beta", 404), (ADMIN_KEY, 200)):
            headers = {"authorization": f"Bearer {key}"}
            found = await rig.http.get(f"/v1/bills/{name}", headers=headers)
            assert found.status_code == status
    async with running_rig(nats_url, api_keys=json.dumps(KEYS), tenant_cache="shared") as rig:
        for key in ("key-of-acme", "key-of-beta"):
            assert (await ask(rig, key)).status_code == 200
        acme, beta = rig.cluster.get("p0").runs
        assert acme.chain == beta.chain


async def test_a_name_that_another_tenant_uses_too_hides_no_bill(nats_url: str) -> None:
    async with running_rig(nats_url, api_keys=json.dumps(KEYS)) as rig:
        ids = {}
        for key in ("key-of-acme", "key-of-beta"):
            headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
            body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
            assert (await rig.http.post("/v1/completions", json=body, headers=headers)).is_success
            ids[key] = rig.cluster.get("p0").runs[-1].ref.request_id
        for key, last in (*ids.items(), (ADMIN_KEY, ids["key-of-beta"])):
            headers = {"authorization": f"Bearer {key}"}
            found = await rig.http.get("/v1/bills/mine", headers=headers)
            assert found.json()["request_id"] == last


async def test_a_body_that_does_not_come_is_given_up(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reader, "BODY_TIMEOUT_S", 0.1)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    async with running_rig(nats_url) as rig:
        answer = await rig.http.post("/v1/completions", content=slow(), timeout=3)
        assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout")


async def test_what_is_too_much_at_once_is_refused_with_when_to_come_back(nats_url: str) -> None:
    async with running_rig(nats_url, api_keys=json.dumps(KEYS), max_in_flight=2) as rig:
        decode = rig.cluster.get("d0")
        decode.open.clear()
        running = asyncio.ensure_future(ask(rig, "key-of-acme"))
        await until(lambda: decode.runs, what="decode runs")
        busy = await ask(rig, "key-of-acme")
        assert (busy.status_code, busy.json()["error"]["code"]) == (429, "concurrency_limit")
        assert int(busy.headers["retry-after"]) >= 1
        full = await ask(rig, "key-of-beta", n=2)
        assert full.status_code == 503
        assert full.json()["error"]["code"] == "too_many_requests_in_flight"
        assert int(full.headers["retry-after"]) >= 1
        decode.open.set()
        assert (await running).status_code == 200
        assert (await ask(rig, "key-of-beta", n=2)).status_code == 200
        await until(lambda: rig.service.num_in_flight == 0, what="nothing is in flight")


async def test_a_prompt_longer_than_the_deployment_takes_is_refused(nats_url: str) -> None:
    async with running_rig(nats_url, max_prompt_tokens=2 * BLOCK_TOKENS) as rig:
        assert (await ask(rig)).status_code == 200
        long = await ask(rig, prompt=[*PROMPT, 1])
        assert (long.status_code, long.json()["error"]["code"]) == (413, "prompt_too_long")
        assert long.json()["error"]["param"] == "prompt"


async def test_https_is_served_with_a_certificate(nats_url: str, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    authority = Authority()
    authority.write_server(["127.0.0.1"], cert, key)
    # The chain, so that the file verifies itself in the client too.
    cert.write_bytes(cert.read_bytes() + authority.pem)
    async with running_rig(nats_url, http_cert=cert, http_key=key) as rig:
        assert rig.url.startswith("https://")
        assert (await ask(rig)).status_code == 200
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError):
                await stranger.get(rig.url)


async def test_files_that_are_no_certificate_are_told_by_their_settings(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("nothing")

    async def app(*_: Any) -> None:
        return

    with pytest.raises(ServiceError, match="MOONPOOL_HTTP_CERT"):
        HttpServer(app, "127.0.0.1", 0, cert=cert, key=cert)


async def test_with_keys_the_metrics_are_the_admins(nats_url: str) -> None:
    async with running_rig(nats_url, api_keys=json.dumps(KEYS)) as rig:
        for key, status in ((None, 401), ("key-of-acme", 403), (ADMIN_KEY, 200)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            assert (await rig.http.get("/metrics", headers=headers)).status_code == status, key
    async with running_rig(nats_url) as rig:
        assert (await rig.http.get("/metrics")).status_code == 200
