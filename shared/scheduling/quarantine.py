"""Who is kept out although its heartbeat is healthy: judged by what others saw of its work. Pure.

A party is one incarnation of a prefill or decode instance or of a node. It is kept out when most of
what it was asked lately failed, or took several times as long as the same work took elsewhere, and
the others do clearly better: what is bad everywhere is nobody's own fault. After a while one
request at a time is let through; when some of them go well it is back, else it is out for twice as
long.
"""

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Party = tuple[str, str, str]
"""(service, id, incarnation)"""
MAX_KEPT = 64


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    window_s: float = 60.0
    """Older outcomes say nothing any more."""
    min_failed: int = 3
    failed_share: float = 0.5
    """Of its outcomes; the share of all others of its service must be half of that at most."""
    min_timed: int = 4
    slow_factor: float = 4.0
    """Median of time by expected time, against the median of the others."""
    min_slow_s: float = 0.4
    """What takes less is not called slow, whatever was expected."""
    base_s: float = 0.25
    """Added to what is expected: the rest of a short piece of work says nothing of its worker."""
    first_s: float = 5.0
    max_s: float = 120.0
    num_good_probes: int = 2
    probe_timeout_s: float = 10.0
    """A probe of which nothing was heard for so long is followed by another. Of a node it counts as
    good: the work may not have read from it."""
    relapse_s: float = 60.0
    """Back for less than that: the next time out is twice as long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one witness saw of one piece of work."""

    witness: str
    is_good: bool
    took_s: float = 0.0
    expected_s: float = 0.0
    """0: nothing is known of how long it should take."""

    @property
    def is_timed(self) -> bool:
        return self.is_good and self.expected_s > 0


@dataclass(frozen=True, slots=True)
class KeptOut:
    """One party that is out, as it is shown."""

    party: Party
    reason: str
    state: Literal["out", "probed"]
    since_s: float
    until_s: float
    num_times: int


@dataclass(slots=True)
class _Out:
    reason: str
    since_s: float
    until_s: float
    num_times: int
    num_good_probes: int = 0
    is_probed: bool = False
    probing_until_s: float = float("-inf")


@dataclass(slots=True)
class _Seen:
    outcomes: deque[tuple[float, Outcome]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    out: _Out | None = None
    num_times: int = 0
    back_s: float = float("-inf")


class Quarantine:
    """Mutated by `note` and `began`; what it says depends on the time that is given."""

    def __init__(self, rules: QuarantineRules | None = None) -> None:
        self.rules = rules or QuarantineRules()
        self._seen: dict[Party, _Seen] = {}
        self._out: set[Party] = set()
        """Those that are out or probed: few, and every placement asks for them."""

    # --- evidence ------------------------------------------------------------------------------
    def note(self, party: Party, outcome: Outcome, now_s: float) -> None:
        """Something was seen of that party's work."""
        seen = self._seen.get(party)
        if seen is None:
            self._forget_old(now_s)
            seen = self._seen[party] = _Seen()
        if seen.out is not None:
            self._note_probe(party, seen, seen.out, outcome, now_s)
            return
        seen.outcomes.append((now_s, outcome))
        reason = self._fault(party, now_s)
        if reason:
            self._put_out(party, seen, reason, now_s)

    def began(self, party: Party, now_s: float) -> None:
        """Work was given to it: while it is probed, no other is until that has ended."""
        if party not in self._out:
            return
        seen = self._seen.get(party)
        if seen is None or seen.out is None or now_s < seen.out.until_s:
            return
        is_over = now_s >= seen.out.probing_until_s
        if seen.out.is_probed and is_over and party[0] == "transfer":
            # Work on a node need not read from it: what nobody complains of is good.
            self._went_well(party, seen, seen.out, now_s)
        if seen.out is not None:
            seen.out.is_probed = True
            seen.out.probing_until_s = now_s + self.rules.probe_timeout_s

    def _note_probe(
        self, party: Party, seen: _Seen, out: _Out, outcome: Outcome, now_s: float
    ) -> None:
        if now_s < out.until_s or not out.is_probed:
            return  # it was begun before
        out.is_probed, out.probing_until_s = False, float("-inf")
        if not outcome.is_good or self._is_slow([outcome], self._others(party, now_s)):
            self._put_out(party, seen, out.reason, now_s)
            return
        self._went_well(party, seen, out, now_s)

    def _went_well(self, party: Party, seen: _Seen, out: _Out, now_s: float) -> None:
        out.num_good_probes += 1
        if out.num_good_probes >= self.rules.num_good_probes:
            seen.out = None
            self._out.discard(party)
            seen.back_s = now_s
            seen.outcomes.clear()

    def _put_out(self, party: Party, seen: _Seen, reason: str, now_s: float) -> None:
        is_relapse = seen.out is not None or now_s - seen.back_s < self.rules.relapse_s
        seen.num_times = seen.num_times + 1 if is_relapse else 1
        for_s = min(self.rules.first_s * 2.0 ** (seen.num_times - 1), self.rules.max_s)
        since_s = now_s if seen.out is None else seen.out.since_s
        seen.out = _Out(reason, since_s, now_s + for_s, seen.num_times)
        self._out.add(party)

    # --- judging -------------------------------------------------------------------------------
    def _fault(self, party: Party, now_s: float) -> str:
        """Why it must go; empty when it need not."""
        own = list(self._lately(party, now_s))
        others = self._others(party, now_s)
        num_failed = sum(not outcome.is_good for outcome in own)
        share = num_failed / len(own)
        if num_failed >= self.rules.min_failed and share >= self.rules.failed_share:
            # Those that are out count too: what fails everywhere puts out no second one.
            everybody = self._others(party, now_s, with_out=True)
            elsewhere = sum(not outcome.is_good for outcome in everybody) / max(len(everybody), 1)
            if elsewhere <= share / 2:
                return f"{num_failed} of {len(own)} failed, {elsewhere:.0%} elsewhere"
        timed = [outcome for outcome in own if outcome.is_timed][-2 * self.rules.min_timed :]
        if len(timed) >= self.rules.min_timed and self._is_slow(timed, others):
            took_s = statistics.median(outcome.took_s for outcome in timed)
            factor = self._pace(timed) / self._pace([one for one in others if one.is_timed])
            return f"{factor:.0f} times as slow as others ({took_s:.1f} s)"
        return ""

    def _is_slow(self, timed: list[Outcome], others: list[Outcome]) -> bool:
        elsewhere = [outcome for outcome in others if outcome.is_timed]
        timed = [outcome for outcome in timed if outcome.is_timed]
        if len(elsewhere) < self.rules.min_timed or not timed:
            return False
        took_s = statistics.median(outcome.took_s for outcome in timed)
        return took_s >= self.rules.min_slow_s and (
            self._pace(timed) >= self.rules.slow_factor * self._pace(elsewhere)
        )

    def _pace(self, timed: list[Outcome]) -> float:
        base_s = self.rules.base_s
        return statistics.median(one.took_s / (one.expected_s + base_s) for one in timed)

    def _lately(self, party: Party, now_s: float) -> Iterator[Outcome]:
        for noted_s, outcome in self._seen[party].outcomes:
            if now_s - noted_s <= self.rules.window_s:
                yield outcome

    def _others(self, party: Party, now_s: float, *, with_out: bool = False) -> list[Outcome]:
        """Of all other parties of its service, without those that are out unless told."""
        return [
            outcome
            for other, seen in self._seen.items()
            if other[0] == party[0] and other[1] != party[1] and (with_out or seen.out is None)
            for outcome in self._lately(other, now_s)
        ]

    def _forget_old(self, now_s: float) -> None:
        """Of incarnations that nobody has spoken of for long."""
        kept_s = self.rules.window_s + self.rules.max_s + self.rules.relapse_s
        for party, seen in list(self._seen.items()):
            last_s = seen.outcomes[-1][0] if seen.outcomes else seen.back_s
            until_s = seen.out.until_s if seen.out is not None else last_s
            if now_s - max(last_s, until_s) > kept_s:
                del self._seen[party]
                self._out.discard(party)

    # --- what follows --------------------------------------------------------------------------
    def is_out(self, party: Party, now_s: float) -> bool:
        """It gets no work now. One that is probed gets one piece at a time."""
        seen = self._seen.get(party)
        if seen is None or seen.out is None:
            return False
        return now_s < seen.out.until_s or now_s < seen.out.probing_until_s

    def parties_out(self, now_s: float) -> list[Party]:
        """All of which `is_out` is true."""
        return [party for party in self._out if self.is_out(party, now_s)]

    def kept_out(self, now_s: float) -> list[KeptOut]:
        """All that are out or probed, by name."""
        return [
            KeptOut(
                party=party,
                reason=out.reason,
                state="out" if now_s < out.until_s else "probed",
                since_s=out.since_s,
                until_s=out.until_s,
                num_times=out.num_times,
            )
            for party, seen in sorted(self._seen.items())
            if (out := seen.out) is not None
        ]
