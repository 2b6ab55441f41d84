"""Measures llama.cpp, in its own environment. Imports nothing of moonpool."""

import random
import time
from typing import Any

import llama_cpp


class LlamaCpp:
    def __init__(self, file: str, threads: int) -> None:
        self._random = random.Random(1)
        self._llama = llama_cpp.Llama(
            model_path=file,
            n_ctx=0,  # the model's own
            n_batch=2048,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            verbose=False,
        )
        self._decode_context = 0

    def prefill(self, num_tokens: int) -> float:
        """Seconds of one prompt of random tokens."""
        self._decode_context = 0
        self._llama.reset()
        tokens = self._tokens(num_tokens)
        start_s = time.perf_counter()
        self._llama.eval(tokens)
        return time.perf_counter() - start_s

    def decode(self, context: int, batch: int, steps: int) -> float:
        """Seconds of a step of one sequence of `context` tokens."""
        if batch != 1:
            raise ValueError("only a batch of 1 is measured")
        if self._decode_context != context:
            self._llama.reset()
            self._llama.eval(self._tokens(context))
            self._decode_context = context
        self._llama.n_tokens = context  # forgets what earlier steps added
        self._llama.eval(self._tokens(1))
        start_s = time.perf_counter()
        for token in self._tokens(steps):
            self._llama.eval([token])
        return (time.perf_counter() - start_s) / steps

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._llama.n_vocab()) for _ in range(count)]


def load(settings: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    engine = LlamaCpp(settings["file"], settings["threads"])
    return (
        {"version": f"llama-cpp-python {llama_cpp.__version__}"},
        {"prefill": engine.prefill, "decode": engine.decode},
    )
