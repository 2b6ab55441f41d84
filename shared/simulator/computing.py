"""Prompts that are being computed in a simulated cluster: what will be readable where, and when."""

from dataclasses import dataclass

from shared.kv import block_keys
from shared.scheduling.vocabulary import ExpectedPrefix


@dataclass(slots=True)
class Computing:
    """One prompt on its way through a prefill instance."""

    instance: str
    chain: bytes
    done_blocks: int
    start_s: float
    """When it starts, or goes on."""
    end_s: float

    def eta_s(self, num_blocks: int, now_s: float) -> float:
        """Chunks come one after the other."""
        share = (num_blocks - self.done_blocks) / max(
            block_keys.num_keys(self.chain) - self.done_blocks, 1
        )
        return max(self.start_s + share * (self.end_s - self.start_s) - now_s, 0.0)


class ComputingPrompts:
    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._by_start: dict[bytes, dict[str, Computing]] = {}
        """By the first key, then by handle."""

    def began(self, handle: str, one: Computing) -> None:
        if one.chain:
            self._by_start.setdefault(block_keys.take(one.chain, 1), {})[handle] = one

    def computed(self, handle: str, chain: bytes, num_blocks: int, now_s: float) -> None:
        """So many leading blocks are readable; the rest follows at the pace that was expected."""
        one = self._by_start.get(block_keys.take(chain, 1), {}).get(handle)
        if one is not None and num_blocks > one.done_blocks:
            left_s = one.eta_s(block_keys.num_keys(one.chain), one.start_s)
            left_s -= one.eta_s(num_blocks, one.start_s)
            one.done_blocks, one.start_s, one.end_s = num_blocks, now_s, now_s + left_s

    def ended(self, handle: str, chain: bytes) -> None:
        alike = self._by_start.get(block_keys.take(chain, 1), {})
        alike.pop(handle, None)
        if not alike:
            self._by_start.pop(block_keys.take(chain, 1), None)

    def expected(self, chain: bytes, now_s: float) -> tuple[ExpectedPrefix, ...]:
        """By instance, the longest prefix of the chain that it will have."""
        best: dict[str, ExpectedPrefix] = {}
        for one in self._by_start.get(block_keys.take(chain, 1), {}).values():
            num_blocks = block_keys.num_common(one.chain, chain)
            if num_blocks <= one.done_blocks:
                continue  # what is there already is found in the pools
            eta_s = one.eta_s(num_blocks, now_s)
            known = best.get(one.instance)
            if known is None or (num_blocks, -eta_s) > (known.num_blocks, -known.eta_s):
                key = (one.instance, self._incarnation)
                best[one.instance] = ExpectedPrefix(key, num_blocks, eta_s)
        return tuple(sorted(best.values(), key=lambda one: (-one.num_blocks, one.eta_s)))
