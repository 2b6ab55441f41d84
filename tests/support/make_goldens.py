"""Computes greedy answers with Hugging Face transformers in float32, for tests to compare with.

Not part of the test run: it needs transformers, which the project does not depend on.

    python -m venv --system-site-packages /tmp/goldens
    /tmp/goldens/bin/pip install transformers accelerate
    PYTHONPATH=. /tmp/goldens/bin/python tests/support/make_goldens.py [families] [smollm2] ...
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.locate import PACKAGED_MODEL, locate
from shared.checkpoint.text_model import load_text_model
from tests.support.chat_templates import CHATS, SPECIAL_TOKENS, TEMPLATES
from tests.support.family_checkpoints import (
    FAMILIES,
    NUM_ANSWER_TOKENS,
    SCORED_FAMILIES,
    family_prompt,
    write_family,
)

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
NUM_LOGPROBS = 8
NUM_TOP = 5
REPETITION_PENALTY = 1.3
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a long story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how a steam engine works, step by step.",
)


@torch.inference_mode()
def greedy(model: Any, prompt: Sequence[int], penalty: float = 1.0) -> dict[str, Any]:
    """The likeliest tokens whatever they are, their log probabilities, and the closest call."""
    processors = importlib.import_module("transformers.generation.logits_process")
    penalise = processors.RepetitionPenaltyLogitsProcessor(penalty)
    ids, cache = torch.tensor([list(prompt)]), None
    fed = ids
    answer: list[int] = []
    logprobs: list[dict[str, float]] = []
    smallest_gap = float("inf")
    while len(answer) < NUM_ANSWER_TOKENS:
        out = model(fed, past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        changed = penalise(ids, logits) if penalty != 1.0 else logits
        best = changed[0].topk(2)
        smallest_gap = min(smallest_gap, float(best.values[0] - best.values[1]))
        fed = best.indices[:1].unsqueeze(0)
        ids = torch.cat([ids, fed], dim=1)
        answer.append(int(fed))
        if len(logprobs) < NUM_LOGPROBS:
            top = logits[0].log_softmax(0).topk(NUM_TOP)
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            logprobs.append({str(token): round(value, 6) for token, value in pairs})
    return {
        "prompt": list(prompt),
        "answer": answer,
        "logprobs": logprobs,
        "smallest_gap": round(smallest_gap, 6),
    }


def families(transformers: Any) -> dict[str, Any]:
    found = {}
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_family(family, Path(folder) / name)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            ).eval()
            prompt = family_prompt(family)
            found[name] = greedy(model, prompt)
            found[name]["penalised"] = greedy(model, prompt, REPETITION_PENALTY)["answer"][:64]
        del found[name]["prompt"]  # follows from the family
        print(name, found[name]["smallest_gap"], len(set(found[name]["answer"])), "different")
    return found


@torch.inference_mode()
def prompt_logprobs(transformers: Any) -> dict[str, Any]:
    """Of some families' prompts: every token's log probability, and the likeliest one there."""
    found = {}
    for name in SCORED_FAMILIES:
        family = FAMILIES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = write_family(family, Path(folder) / name)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        prompt = torch.tensor(family_prompt(family))
        rows = model(prompt[None]).logits[0, :-1].float().log_softmax(dim=1)
        best = rows.topk(2)
        found[name] = {
            "logprobs": _rounded(rows.gather(1, prompt[1:, None])[:, 0]),
            "likeliest": best.indices[:, 0].tolist(),
            "likeliest_logprobs": _rounded(best.values[:, 0]),
            "smallest_gap": round(float((best.values[:, 0] - best.values[:, 1]).min()), 6),
        }
        print(name, found[name]["smallest_gap"])
    return found


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def packaged_model(transformers: Any) -> list[Any]:
    """transformers reads the GGUF file itself: its weights, not ours, make these answers."""
    path = locate(PACKAGED_MODEL).file_path
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    text = load_text_model(PACKAGED_MODEL)
    found = []
    for question in QUESTIONS:
        prompt = text.tokenizer.encode(
            text.chat_template.render([{"role": "user", "content": question}])
        )
        found.append({"question": question, **greedy(model, prompt)})
        print(question, found[-1]["smallest_gap"])
    return found


def chat_templates(transformers: Any) -> dict[str, Any]:
    """What transformers makes of each chat by each template, without and with the opening."""
    render = transformers.utils.chat_template_utils.render_jinja_template
    found: dict[str, Any] = {}
    packaged = read_gguf(locate(PACKAGED_MODEL).file_path).metadata["tokenizer.chat_template"]
    for template_name, template in (*TEMPLATES.items(), (PACKAGED_MODEL, packaged)):
        for chat_name, chat in CHATS.items():
            found[f"{template_name}: {chat_name}"] = [
                render(
                    conversations=[chat],
                    chat_template=template,
                    add_generation_prompt=is_open,
                    **SPECIAL_TOKENS,
                )[0][0]
                for is_open in (False, True)
            ]
    return found


def main() -> None:
    transformers = importlib.import_module("transformers")
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    makers = {
        "families": families,
        "prompt_logprobs": prompt_logprobs,
        "smollm2": packaged_model,
        "chat_templates": chat_templates,
    }
    for name in sys.argv[1:] or makers:
        content = {"made_with": versions, "answers": makers[name](transformers)}
        text = json.dumps(content, separators=(",", ":"))
        (GOLDENS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
