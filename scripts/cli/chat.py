"""`moonpool chat`: talk to a cluster in the terminal."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from scripts.cli.output import CommandError, console, print_json
from scripts.cli.target import DEFAULT_URL, UP_HINT, find_target

Messages = list[dict[str, str]]


def chat(
    url: Annotated[
        str | None, typer.Option(help=f"The cluster; else the one here, or {DEFAULT_URL}.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Else the first one served.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    message: Annotated[str | None, typer.Option(help="Ask this once and end.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MOONPOOL_API_KEY", help="Where the cluster wants one."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --message: one JSON object on stdout.")
    ] = False,
) -> None:
    """Talk to a cluster; every turn reuses the KV of those before it.

    Examples:

      moonpool chat

      moonpool chat --message "What is a prefix cache?"

      moonpool chat --url http://my-host:8000 --message "Hello" --json
    """
    if as_json and message is None:
        raise CommandError("--json needs --message", hint='moonpool chat --json --message "Hello"')
    target = find_target(url)
    base_url = DEFAULT_URL if target is None else target.base_url
    key = api_key or ("" if target is None else target.admin_key)
    with Client(base_url, key) as client:
        name = model or client.first_model()
        talk = Talk(client, name, max_tokens=max_tokens, temperature=temperature)
        if system:
            talk.messages.append({"role": "system", "content": system})
        if message is None:
            _converse(talk, base_url)
            return
        started_s = time.perf_counter()
        answer = talk.ask(message, is_printing=not as_json)
        if as_json:
            print_json(
                {
                    "ok": True,
                    "model": name,
                    "content": answer,
                    "usage": talk.usage,
                    "seconds": round(time.perf_counter() - started_s, 4),
                }
            )


class Client:
    """The few calls of the API that a chat needs, with errors that say what to do."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            timeout=httpx.Timeout(300.0, connect=5.0),
            trust_env=False,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def first_model(self) -> str:
        try:
            response = self._checked(self._http.get("/v1/models"))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        models: list[dict[str, Any]] = response.json()["data"]
        if not models:
            raise CommandError(
                f"the cluster at {self._base_url} serves no model yet",
                hint="wait until it is ready: `moonpool status`",
            )
        return str(models[0]["id"])

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of one streamed answer."""
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                self._checked(response)
                for line in response.iter_lines():
                    if line.startswith("data:") and line[5:].strip() != "[DONE]":
                        yield json.loads(line[5:])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.status_code == 200:
            return response
        try:
            message = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = response.text[:200]
        raise CommandError(f"{self._base_url} answers {response.status_code}: {message}")

    def _unreachable(self, error: httpx.HTTPError) -> CommandError:
        return CommandError(
            f"no answer from {self._base_url}: {error or type(error).__name__}",
            hint=f"{UP_HINT} with --url",
        )


class Talk:
    """A conversation; keeps the turns."""

    def __init__(self, client: Client, model: str, *, max_tokens: int, temperature: float) -> None:
        self.messages: Messages = []
        self.usage: dict[str, Any] = {}
        self.finish_reason = ""
        self.max_tokens = max_tokens
        self._client = client
        self._fixed = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def ask(self, text: str, *, is_printing: bool) -> str:
        """One turn; an answer that is broken off does not stay in the conversation."""
        self.messages.append({"role": "user", "content": text})
        parts = []
        try:
            for chunk in self._client.stream({**self._fixed, "messages": self.messages}):
                if "error" in chunk:
                    raise CommandError(f"the answer broke off: {chunk['error']['message']}")
                self.usage = chunk.get("usage") or self.usage
                for choice in chunk["choices"]:
                    self.finish_reason = choice.get("finish_reason") or ""
                    part = choice["delta"].get("content") or ""
                    parts.append(part)
                    if is_printing:
                        sys.stdout.write(part)
                        sys.stdout.flush()
        except BaseException:
            self.messages.pop()
            raise
        if is_printing:
            sys.stdout.write("\n")
        answer = "".join(parts)
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    @property
    def cached_tokens(self) -> int:
        details: dict[str, int] = self.usage.get("prompt_tokens_details") or {}
        return details.get("cached_tokens", 0)


def _converse(talk: Talk, base_url: str) -> None:
    console.print(f"[bold]{base_url}[/]: /quit or Ctrl-D ends, Ctrl-C breaks an answer off.")
    while True:
        try:
            text = console.input("[bold cyan]you>[/] ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if text in ("/quit", "/exit"):
            return
        if not text:
            continue
        try:
            talk.ask(text, is_printing=True)
        except KeyboardInterrupt:
            console.print("\n(broken off)")
        except CommandError as error:
            console.print(f"\n[bold red]error:[/] {error.message} {error.hint}")
        else:
            prompt = talk.usage.get("prompt_tokens", "?")
            line = f"{prompt} prompt tokens, {talk.cached_tokens} of them cached"
            if talk.finish_reason == "length":
                line += f"; cut after {talk.max_tokens} tokens (--max-tokens)"
            console.print(f"[dim]{line}[/]")
