"""The block keys of a prompt, made as the gateway makes them."""

from dataclasses import dataclass

import numpy as np

from scripts.cli.output import CommandError
from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.text_model import load_text_model
from shared.kv.block_keys import chain_keys
from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import ModelInfo, ModelsReply
from shared.runtime.bus import Bus

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class PromptChain:
    root: bytes
    keys: bytes
    num_tokens: int
    block_tokens: int


async def chain_of_prompt(
    bus: Bus, model: str | None, prompt: str | None, *, is_chat: bool
) -> PromptChain:
    """Of no prompt: only the root. Raises CommandError."""
    served = await _served(bus, model)
    if prompt is None:
        return PromptChain(served.root, b"", 0, served.block_tokens)
    try:
        text_model = load_text_model(served.name)
    except CheckpointError as error:
        raise CommandError(f"{served.name}: {error}") from None
    if is_chat:
        prompt = text_model.chat_template.render([{"role": "user", "content": prompt}])
    ids = text_model.tokenizer.encode(prompt, add_special_tokens=not is_chat)
    packed = np.asarray(ids, dtype="<i4").tobytes()
    chain = chain_keys(served.root, packed, served.block_tokens)
    return PromptChain(served.root, chain, len(ids), served.block_tokens)


async def _served(bus: Bus, name: str | None) -> ModelInfo:
    reply = await bus.request(subjects.CONDUCTOR_MODELS, Empty(), ModelsReply, timeout_s=TIMEOUT_S)
    names = [one.name for one in reply.models]
    if name is None and len(names) == 1:
        return reply.models[0]
    found = next((one for one in reply.models if one.name == name), None)
    if found is None:
        if not names:
            raise CommandError("no model is served", hint="`moonpool status` shows what runs")
        problem = f"{name} is not served" if name else "several models are served"
        raise CommandError(problem, hint=f"--model with one of {', '.join(names)}")
    return found
