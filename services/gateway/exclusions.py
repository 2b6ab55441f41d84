"""The incarnations that failed one request, so that it is not placed on them again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Exclusion:
    since_s: float
    is_final: bool


class Exclusions:
    """Pure. One that was replaced stays out; a silent or failing one may get another chance."""

    def __init__(self, lift_after_s: float) -> None:
        self._lift_after_s = lift_after_s
        self._by_incarnation: dict[str, _Exclusion] = {}

    def add(self, incarnation: str, now_s: float, *, is_final: bool) -> None:
        was_final = incarnation in self._by_incarnation and (
            self._by_incarnation[incarnation].is_final
        )
        self._by_incarnation[incarnation] = _Exclusion(now_s, is_final or was_final)

    def lift_old(self, now_s: float) -> None:
        """Called when nobody else is left to take the request."""
        self._by_incarnation = {
            incarnation: exclusion
            for incarnation, exclusion in self._by_incarnation.items()
            if exclusion.is_final or now_s - exclusion.since_s < self._lift_after_s
        }

    @property
    def incarnations(self) -> tuple[str, ...]:
        return tuple(self._by_incarnation)
