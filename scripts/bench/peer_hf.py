"""Measures HF transformers, in its own environment. Imports nothing of moonpool."""

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache


class HfTransformers:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self._dtype = getattr(torch, dtype)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=self._dtype).eval()
        self._config = self._model.config

    @torch.inference_mode()
    def prefill(self, num_tokens: int) -> float:
        """Seconds of one prompt of random tokens, with the logits of its last position."""
        tokens = torch.randint(0, self._config.vocab_size, (1, num_tokens))
        start_s = time.perf_counter()
        self._model(tokens, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start_s

    @torch.inference_mode()
    def decode(self, context: int, batch: int, steps: int) -> float:
        """Seconds of a step over sequences of `context` tokens; the KV itself is random."""
        cache = DynamicCache()
        config = self._config
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads, context, head_dim)
        for layer in range(config.num_hidden_layers):
            keys, values = torch.randn(2, *shape).to(self._dtype)
            cache.update(keys, values, layer)
        tokens = torch.randint(0, config.vocab_size, (batch, 1))
        self._model(tokens, past_key_values=cache, use_cache=True)
        start_s = time.perf_counter()
        for _ in range(steps):
            logits = self._model(tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
        return (time.perf_counter() - start_s) / steps


def load(settings: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    engine = HfTransformers(settings["folder"], settings["dtype"], settings["threads"])
    return (
        {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"},
        {"prefill": engine.prefill, "decode": engine.decode},
    )
