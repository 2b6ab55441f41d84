"""Commands that ask the gateway over HTTP: which one, with which key, and errors that say what to
do."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Self

import httpx
import typer

from scripts.cli.output import CommandError
from scripts.cli.target import DEFAULT_URL, UP_HINT, find_target

UrlOption = Annotated[
    str | None, typer.Option(help=f"The cluster; else the one here, or {DEFAULT_URL}.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(envvar="MOONPOOL_API_KEY", help="Where the cluster wants one."),
]
HINTS = {
    401: "give a key of the cluster with --api-key or MOONPOOL_API_KEY",
    403: "give the admin key with --api-key, or MOONPOOL_ADMIN_KEY and no other key",
    404: "`moonpool status` names the model that is served",
    429: "try again later; `moonpool top` shows how busy it is",
    503: "try again later; `moonpool status` shows what runs",
    504: "try again later; `moonpool status` shows what runs",
}
URL_HINT = "write it as http://my-host:8000"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
"""Of what takes no turn in a queue; a gateway gives its conductor 2 s."""
STREAM_TIMEOUT_S = 300.0
"""Of a stream, to its next line: a prompt may wait, and be long."""


class GatewayRefused(CommandError):
    """An answer that is an error."""

    def __init__(self, base_url: str, status: int, message: str) -> None:
        super().__init__(f"{base_url} answers {status}: {message}", hint=HINTS.get(status, ""))
        self.status = status


class GatewayClient:
    """The few calls of the API that commands need. Raises CommandError."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url = base_url
        if not (api_key.isascii() and api_key.isprintable()):
            raise CommandError("the API key has characters that no key has", hint=HINTS[401])
        headers = {"content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        try:
            self._http = httpx.Client(
                base_url=base_url,
                timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=False,
                headers=headers,
            )
        except httpx.InvalidURL as error:
            raise CommandError(f"--url {base_url}: {error}", hint=URL_HINT) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def first_model(self) -> str:
        models: list[dict[str, Any]] = self.get("/v1/models", "data")["data"]
        if not models:
            raise CommandError(
                f"the cluster at {self.base_url} serves no model yet",
                hint="wait until it is ready: `moonpool status`",
            )
        return str(models[0]["id"])

    def get(self, path: str, field: str) -> dict[str, Any]:
        """The answer, an object with this field."""
        return self._object(self._answer("GET", path), field)

    def post(self, path: str, body: dict[str, Any], field: str) -> dict[str, Any]:
        return self._object(self._answer("POST", path, body), field)

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed answer."""
        timeout = httpx.Timeout(STREAM_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", content=_json(body), timeout=timeout
            ) as response:
                if response.status_code != 200:
                    response.read()
                self._checked(response)
                for line in response.iter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        yield json.loads(line[5:])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _answer(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        content = None if body is None else _json(body)
        try:
            return self._checked(self._http.request(method, path, content=content))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _object(self, response: httpx.Response, field: str) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or field not in answer:
            raise CommandError(
                f"{response.url} is answered with {response.text[:100]!r}",
                hint="is it a moonpool gateway? --url names another",
            )
        return answer

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.status_code == 200:
            return response
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:200]
        raise GatewayRefused(self.base_url, response.status_code, message)

    def _unreachable(self, error: httpx.HTTPError) -> CommandError:
        is_no_url = isinstance(error, httpx.UnsupportedProtocol)
        return CommandError(
            f"no answer from {self.base_url}: {error or type(error).__name__}",
            hint=URL_HINT if is_no_url else f"{UP_HINT} with --url",
        )


def _json(body: dict[str, Any]) -> str:
    """All ASCII: an argument may hold bytes that are no UTF-8; the gateway refuses them by name."""
    return json.dumps(body)


def open_gateway(url: str | None, api_key: str | None) -> GatewayClient:
    """Of the cluster that is meant, with its admin key where it is known and no other is given."""
    target = find_target(url)
    base_url = DEFAULT_URL if target is None else target.base_url
    return GatewayClient(base_url, api_key or ("" if target is None else target.admin_key))
