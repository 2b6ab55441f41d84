"""What a request says of how its tokens are chosen. Owns the ranges, never the choosing."""

from dataclasses import dataclass

MAX_TOP_LOGPROBS = 20
# Below it a temperature is taken as 0: dividing by it would leave the range of a float.
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None  # None: no logprobs at all

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature: {self.temperature} is below 0")
        if self.top_k < 0:
            raise ValueError(f"top_k: {self.top_k} is below 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: {self.top_p} is not in (0, 1]")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p: {self.min_p} is not in [0, 1]")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name}: {getattr(self, name)} is not in [-2, 2]")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise ValueError(f"repetition_penalty: {self.repetition_penalty} is not in (0, 10]")
        if any(token < 0 or not abs(bias) <= 100.0 for token, bias in self.logit_bias):
            raise ValueError("logit_bias: a token is below 0 or a bias is not in [-100, 100]")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs: {self.top_logprobs} is not in 0-{MAX_TOP_LOGPROBS}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE

    @property
    def changes_logits(self) -> bool:
        """Whether the choice is made from other logits than the model's."""
        return (
            bool(self.logit_bias)
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )
