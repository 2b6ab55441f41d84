"""Request logs as a trace: OpenAI requests are tokenised and hashed, block by block."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.cli.output import CommandError
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest

DEFAULT_OUTPUT = 256
BLOCK_SIZES = (16, 64, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Prompts:
    requests: list[TraceRequest]
    hit_by_block_tokens: dict[int, float]
    """With an infinite cache of full blocks."""


def read_prompts(path: Path, tokenizer: Path, rate_per_s: float) -> Prompts:
    """JSON lines of OpenAI request bodies; `timestamp` (ms) may stand in them."""
    encode = _tokenizer(tokenizer)
    prompts: list[tuple[float, list[int], int]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                body = json.loads(line)
                tokens = encode(text_of(body))
                at_s = float(body.get("timestamp", 1e3 * len(prompts) / rate_per_s)) / 1e3
                output = int(body.get("max_tokens") or DEFAULT_OUTPUT)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CommandError(
                    f"--requests: {path.name} line {number}: {error}",
                    hint="each line is the body of an OpenAI chat or completions request",
                ) from None
            prompts.append((at_s, tokens, output))
    if not prompts:
        raise CommandError(f"--requests: {path.name} holds no request")
    prompts.sort(key=lambda one: one[0])
    return Prompts(
        list(_requests(prompts)),
        {size: ideal_hit([tokens for _, tokens, _ in prompts], size) for size in BLOCK_SIZES},
    )


def text_of(body: dict[str, Any]) -> str:
    """What is read, without any template: templates add the same to all."""
    if "messages" in body:
        return "\n".join(f"{one['role']}: {_content(one['content'])}" for one in body["messages"])
    prompt = body["prompt"]
    if not isinstance(prompt, str):
        raise ValueError("prompt: only text can be tokenised")
    return prompt


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CommandError(
            f"--tokenizer: there is no {file}", hint="give a tokenizer.json or a model's folder"
        )
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _requests(prompts: Sequence[tuple[float, list[int], int]]) -> Iterator[TraceRequest]:
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    for at_s, tokens, output in prompts:
        if not tokens:
            continue
        parent, ids = -1, []
        for start in range(0, len(tokens), BLOCK_TOKENS):
            block = tuple(tokens[start : start + BLOCK_TOKENS])
            parent = numbers.setdefault((parent, block), len(numbers))
            ids.append(parent)
        yield TraceRequest(at_s, len(tokens), output, tuple(ids))


def ideal_hit(prompts: Sequence[Sequence[int]], block_tokens: int) -> float:
    seen: set[int] = set()
    hits = total = 0
    for tokens in prompts:
        parent, is_hit = 0, True
        total += len(tokens)
        for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
            parent = hash((parent, tuple(tokens[start : start + block_tokens])))
            is_hit = is_hit and parent in seen
            hits += block_tokens * is_hit
            seen.add(parent)
    return hits / max(total, 1)
