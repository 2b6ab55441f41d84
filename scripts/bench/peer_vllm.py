"""Measures vLLM on the CPU, in its own environment. Imports nothing of moonpool."""

import random
import time
from typing import Any

import vllm
from vllm import LLM, SamplingParams


class Vllm:
    def __init__(self, folder: str, dtype: str, max_tokens: int) -> None:
        self._random = random.Random(1)
        self._max_tokens = max_tokens
        self._llm = LLM(
            model=folder,
            dtype=dtype,
            max_model_len=max_tokens,
            enforce_eager=True,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,  # only the prompts of `decode` ever come again
            max_num_seqs=32,
        )
        self._vocab_size = self._llm.llm_engine.model_config.get_vocab_size()
        self._num_requests = 0
        self._prompts: dict[tuple[int, int], list[int]] = {}

    def prefill(self, num_tokens: int) -> float:
        """Seconds of one prompt of random tokens. The context must hold one token more."""
        tokens = self._tokens(min(num_tokens, self._max_tokens - 1))
        params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        start_s = time.perf_counter()
        self._llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
        return time.perf_counter() - start_s

    def decode(self, context: int, batch: int, steps: int) -> float:
        """Seconds of a step over sequences of `context` tokens, when all of them decode."""
        engine = self._llm.llm_engine
        params = SamplingParams(
            max_tokens=steps + 64, temperature=0, detokenize=False, ignore_eos=True
        )
        waiting = set()
        for index in range(batch):
            self._num_requests += 1
            request_id = f"decode-{self._num_requests}"
            waiting.add(request_id)
            prompt = self._prompts.setdefault((context, index), self._tokens(context))
            engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        request_ids = list(waiting)
        try:
            while waiting:
                waiting -= {output.request_id for output in engine.step()}
            engine.step()
            start_s = time.perf_counter()
            num_tokens = sum(len(engine.step()) for _ in range(steps))
            seconds = time.perf_counter() - start_s
        finally:
            engine.abort_request(request_ids)
        if num_tokens != steps * batch:
            raise RuntimeError(f"{num_tokens} tokens in {steps} steps of a batch of {batch}")
        return seconds / steps

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


def load(settings: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    engine = Vllm(settings["folder"], settings["dtype"], settings["max_tokens"])
    return (
        {"version": f"vllm {vllm.__version__}"},
        {"prefill": engine.prefill, "decode": engine.decode},
    )
