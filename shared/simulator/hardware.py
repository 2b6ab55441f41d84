"""A kind of machine and model as numbers, read from a small file that names its source."""

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from shared.scheduling.cost_model import CostProfile, K, PrefillCoefficients

PROFILES = Path(__file__).parent / "profiles"
LINE_RATE_SHARE = 0.87
"""Of a link's line rate, what the paper measured as payload (87 of 100 GB/s)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    name: str
    source: str
    prefill_base_s: float
    prefill_linear_s: float
    prefill_quadratic_s: float
    decode_step_s: float
    decode_sequence_s: float
    decode_context_s: float
    kv_bytes_per_token: int
    decode_capacity_tokens: int
    link_bytes_per_s: float
    link_base_s: float
    host_to_device_bytes_per_s: float
    request_s: float = 0.0
    """What of a TTFT is neither waiting, loading nor computing: HTTP, placement, messages."""
    prefill: PrefillCoefficients = field(init=False, compare=False)

    def __post_init__(self) -> None:
        found = PrefillCoefficients(
            self.prefill_base_s, self.prefill_linear_s, self.prefill_quadratic_s
        )
        object.__setattr__(self, "prefill", found)

    @property
    def costs(self) -> CostProfile:
        """What a conductor of such machines starts from."""
        return CostProfile(
            prefill=self.prefill,
            decode_step_s=self.decode_step_s,
            decode_sequence_s=self.decode_sequence_s,
            decode_context_s=self.decode_context_s,
            transfer_bytes_per_s=self.link_bytes_per_s,
            transfer_base_s=self.link_base_s,
            request_s=self.request_s,
        )

    def with_line_rate(self, gbps: float) -> "Hardware":
        return replace(self, link_bytes_per_s=gbps * 1e9 / 8 * LINE_RATE_SHARE)

    def for_scaled_lengths(self, scale: float) -> "Hardware":
        """A trace costs as if its prompts were so many times shorter; steps are steps."""
        return replace(
            self,
            prefill_linear_s=self.prefill_linear_s / scale,
            prefill_quadratic_s=self.prefill_quadratic_s / scale**2,
            decode_context_s=self.decode_context_s / scale,
            kv_bytes_per_token=max(1, round(self.kv_bytes_per_token / scale)),
            decode_capacity_tokens=round(self.decode_capacity_tokens * scale),
        )

    def chunk_s(self, num_tokens: int, prefix_tokens: int, *, is_last: bool) -> float:
        """One pass over a part of a prompt. What a prompt takes once is in the pass that ends it,
        so that the passes of a prompt take what `prefill` says of the whole."""
        work_s = self.prefill.seconds(num_tokens, prefix_tokens) - self.prefill_base_s
        return work_s + (self.prefill_base_s if is_last else 0.0)

    def step_s(self, batch: int, context_tokens: float) -> float:
        """Of a decode batch whose sequences have so many tokens together."""
        step_s = self.decode_step_s + self.decode_sequence_s * batch
        return step_s + self.decode_context_s * context_tokens / K

    def prefill_s(self, num_tokens: int, prefix_tokens: int) -> float:
        """Layers load while others compute: the longer of the two."""
        return max(self.prefill.seconds(num_tokens, prefix_tokens), self.load_s(prefix_tokens))

    def load_s(self, prefix_tokens: int) -> float:
        """To bring a cached prefix from the host's memory."""
        return prefix_tokens * self.kv_bytes_per_token / self.host_to_device_bytes_per_s


def profile_names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def load_hardware(name: str) -> Hardware:
    """By name, or by the path of such a file; raises ValueError that names what is wrong."""
    path = Path(name) if name.endswith(".json") else PROFILES / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"hardware: there is no profile {name!r} ({', '.join(profile_names())})")
    known = {"request_s": 0.0, **json.loads(path.read_text(encoding="utf-8"))}
    wanted = [each for each in fields(Hardware) if each.init]
    missing = [each.name for each in wanted if each.name not in known]
    if missing:
        raise ValueError(f"hardware: {path.name} lacks {', '.join(missing)}")
    for each in wanted:
        if each.type is not str and not (
            isinstance(known[each.name], (int, float)) and known[each.name] >= 0
        ):
            raise ValueError(f"hardware: {each.name} must be a number of at least 0")
    return Hardware(**{each.name: known[each.name] for each in wanted})
