"""Runs the demo: the five steps one after the other, then each question cold, and compares."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.demo.client import Answer, Asker
from scripts.demo.plan import Step


@dataclass(frozen=True, slots=True)
class Row:
    """One request and its cold twin."""

    step: Step
    answer: Answer
    cold: Answer

    @property
    def equal_to_cold(self) -> bool:
        return self.answer.token_ids == self.cold.token_ids

    @property
    def problems(self) -> list[str]:
        """What is not as it must be; empty when all is."""
        step, answer, served = self.step, self.answer, self.answer.served
        found = []
        if not answer.token_ids:
            found.append("no tokens came back")
        if not self.equal_to_cold:
            found.append("its tokens differ from those of the cold run")
        if self.cold.cached_tokens or self.cold.served.cached_from != "none":
            found.append("the cold run used the cache")
        if step.cached_from is not None and served.cached_from != step.cached_from:
            found.append(f"cached from {served.cached_from}, must be {step.cached_from}")
        if (served.cached_from != "none") != (answer.cached_tokens > 0):
            found.append(f"cached from {served.cached_from}, yet {answer.cached_tokens} tokens")
        if step.must_move_bytes and served.bytes_moved <= 0:
            found.append("no bytes moved")
        for role, wanted, got in (
            ("prefill", step.prefill, served.prefill),
            ("decode", step.decode, served.decode),
        ):
            if wanted and wanted != got:
                found.append(f"{role} ran on {got}, was asked of {wanted}")
        return found

    def as_json(self) -> dict[str, Any]:
        served = self.answer.served
        return {
            "what": self.step.what,
            "prefill": served.prefill,
            "decode": served.decode,
            "prompt_tokens": self.answer.prompt_tokens,
            "cached_tokens": self.answer.cached_tokens,
            "cached_from": served.cached_from,
            "ttft_s": served.ttft_s,
            "cold_ttft_s": self.cold.served.ttft_s,
            "bytes_moved": served.bytes_moved,
            "transfer_s": served.transfer_s,
            "bill": served.bill,
            "equal_to_cold": self.equal_to_cold,
        }


async def run(asker: Asker, steps: Sequence[Step], on_step: Callable[[str], None]) -> list[Row]:
    """All rows in order. The cold runs go to the two nodes in turn, one at a time on each."""
    answers = []
    for number, step in enumerate(steps, 1):
        on_step(f"question {number} of {len(steps)}: {step.what}")
        answers.append(await asker.ask(step.question, placement=step.placement, is_cached=True))
    on_step("the same questions again without any cache")
    places = list({step.prefill: step.placement for step in steps if step.prefill}.values())
    lanes = [asyncio.Lock() for _ in places]

    async def ask_cold(index: int) -> Answer:
        lane = index % len(lanes)
        async with lanes[lane]:
            return await asker.ask(steps[index].question, placement=places[lane], is_cached=False)

    cold = await asyncio.gather(*(ask_cold(index) for index in range(len(steps))))
    return [Row(*parts) for parts in zip(steps, answers, cold, strict=True)]
