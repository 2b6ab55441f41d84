"""PURE: the room an instance has promised, by attempt. Never allocates anything itself."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shared.telemetry.about import NOTHING, About


@dataclass(frozen=True, slots=True)
class Promise:
    """Room for one attempt. With an end it is a reservation, without one it is work."""

    handle: str
    gateway: str
    gateway_incarnation: str
    num_tokens: int
    num_blocks: int
    expires_s: float | None
    about: About = NOTHING

    @property
    def is_reservation(self) -> bool:
        return self.expires_s is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """What an instance may promise at once."""

    max_requests: int
    max_tokens: int
    max_blocks: int | None
    """Of one attempt: they are taken all at once, and an attempt may wait for others' blocks.
    None: as many as the pool allows."""


class Promises:
    """Owns the sums of what is promised; every promise ends by expiry or by `end`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_handle: dict[str, Promise] = {}
        self._tokens = 0
        self._reserved_tokens = 0

    def __len__(self) -> int:
        return len(self._by_handle)

    def __contains__(self, handle: str) -> bool:
        return handle in self._by_handle

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def reserved_tokens(self) -> int:
        """Tokens of reservations whose run has not come."""
        return self._reserved_tokens

    @property
    def free_tokens(self) -> int:
        return max(self._limits.max_tokens - self._tokens, 0)

    @property
    def missing_tokens(self) -> int:
        """Held beyond what there is: answers grew over what was promised to them."""
        return max(self._tokens - self._limits.max_tokens, 0)

    def refusal(self, handle: str, num_tokens: int, num_blocks: int) -> str:
        """Why there is no room for this attempt; empty when there is."""
        own = self._by_handle.get(handle)
        others = len(self._by_handle) - (own is not None)
        other_tokens = self._tokens - (own.num_tokens if own is not None else 0)
        limits = self._limits
        if limits.max_blocks is not None and num_blocks > limits.max_blocks:
            return f"needs {num_blocks} blocks, this instance may hold {limits.max_blocks}"
        if num_tokens > limits.max_tokens:
            return f"needs room for {num_tokens} tokens, there is {limits.max_tokens} in all"
        if others >= limits.max_requests:
            return f"{others} requests are promised already"
        if other_tokens + num_tokens > limits.max_tokens:
            free = max(limits.max_tokens - other_tokens, 0)
            return f"needs room for {num_tokens} tokens, {free} are free"
        return ""

    def give(self, promise: Promise) -> None:
        """Promise anew or replace the promise of the same attempt."""
        self.end(promise.handle)
        self._by_handle[promise.handle] = promise
        self._count(promise, 1)

    def extend(self, handle: str) -> bool:
        """The run came: the promise lasts until `end`. False when there is none."""
        promise = self._by_handle.get(handle)
        if promise is None:
            return False
        self.give(replace(promise, expires_s=None))
        return True

    def raise_to(self, handle: str, num_tokens: int) -> None:
        """It holds more than was promised; what it once held stays promised until its end."""
        promise = self._by_handle.get(handle)
        if promise is not None and num_tokens > promise.num_tokens:
            self.give(replace(promise, num_tokens=num_tokens))

    def end(self, handle: str) -> Promise | None:
        promise = self._by_handle.pop(handle, None)
        if promise is not None:
            self._count(promise, -1)
        return promise

    def expire(self, now_s: float) -> list[Promise]:
        """Ends the reservations whose time is over."""
        over = [
            promise
            for promise in self._by_handle.values()
            if promise.expires_s is not None and promise.expires_s <= now_s
        ]
        for promise in over:
            self.end(promise.handle)
        return over

    def end_reservations(
        self, gateway: str, gateway_incarnation: str, handles: Iterable[str]
    ) -> list[Promise]:
        """Ends those of these attempts that are this gateway's and whose run has not come."""
        found = (self._by_handle.get(handle) for handle in handles)
        given_by = (gateway, gateway_incarnation)
        over = [
            promise
            for promise in found
            if promise is not None
            and promise.is_reservation
            and (promise.gateway, promise.gateway_incarnation) == given_by
        ]
        for promise in over:
            self.end(promise.handle)
        return over

    def _count(self, promise: Promise, sign: int) -> None:
        self._tokens += sign * promise.num_tokens
        if promise.is_reservation:
            self._reserved_tokens += sign * promise.num_tokens
