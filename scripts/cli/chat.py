"""`moonpool chat`: talk to a cluster in the terminal."""

import sys
import time
from typing import Annotated, Any

import typer

from scripts.cli.gateway_client import ApiKeyOption, GatewayClient, UrlOption, open_gateway
from scripts.cli.output import CommandError, console, print_json

Messages = list[dict[str, str]]


def chat(
    url: UrlOption = None,
    model: Annotated[str | None, typer.Option(help="Else the first one served.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    message: Annotated[str | None, typer.Option(help="Ask this once and end.")] = None,
    api_key: ApiKeyOption = None,
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
    with open_gateway(url, api_key) as client:
        name = model or client.first_model()
        talk = Talk(client, name, max_tokens=max_tokens, temperature=temperature)
        if system:
            talk.messages.append({"role": "system", "content": system})
        if message is None:
            _converse(talk, client.base_url)
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


class Talk:
    """A conversation; keeps the turns."""

    def __init__(
        self, client: GatewayClient, model: str, *, max_tokens: int, temperature: float
    ) -> None:
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
