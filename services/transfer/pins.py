"""Blocks that an operator wants to stay: held in DRAM until their time is over, within a budget."""

import secrets
from collections import Counter

from services.transfer.expiry_timer import ExpiryTimer
from services.transfer.node_pool import NodePool
from services.transfer.promoter import Promoter
from shared.kv.block_keys import split
from shared.kv.ids import BlockKey
from shared.kv.lease import LeaseTable
from shared.messages.common import ErrorCode
from shared.messages.transfer import PinReply, PinRequest
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import ServiceError

OWNER = "pin"
PROMOTE_S = 10.0


class Pins:
    """Owns the pins of a node and the timer that ends them."""

    def __init__(self, pool: NodePool, promoter: Promoter, max_share: float) -> None:
        self._pool = pool
        self._promoter = promoter
        self.max_blocks = int(pool.blocks.counts.total * max_share)
        self._pins = LeaseTable()
        self._promised: Counter[BlockKey] = Counter()
        """Of pins that are being made: as good as held."""
        self._timer = ExpiryTimer(self._pins, lambda pin: self._end(pin.lease_id))

    @property
    def num_blocks(self) -> int:
        return self._pool.blocks.num_held(OWNER)

    async def pin(self, request: PinRequest) -> PinReply:
        if request.tenant is not None:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                "tenant: quotas of tenants over tiers are not supported; leave it away",
                field="tenant",
            )
        if request.pin_id:
            return self._renew(request)
        try:
            keys = split(request.keys)
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, f"keys: {error}", field="keys") from None
        pin_id = secrets.token_hex(8)
        num_blocks = await self._hold(pin_id, keys) if request.ttl_ms else 0
        if num_blocks:
            self._pins.grant(pin_id, OWNER, monotonic_s(), request.ttl_ms / 1000)
            self._timer.set()
        return self._reply(pin_id, num_blocks)

    async def _hold(self, pin_id: str, keys: list[BlockKey]) -> int:
        """All that the node has of `keys`, or nothing when that is over the budget."""
        blocks = self._pool.blocks
        num_promised = self._num_new(set(self._promised))
        num_new = self._num_new(set(keys) | set(self._promised)) - num_promised
        num_pinned = self.num_blocks + num_promised
        if num_pinned + num_new > self.max_blocks:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"keys: {num_new} blocks more to pin, {num_pinned} are pinned of at most "
                f"{self.max_blocks}; end a pin or raise MOONPOOL_PIN_SHARE",
                field="keys",
            )
        promised = Counter(keys)
        self._promised += promised
        try:
            held, _ = await self._promoter.hold_verified(
                OWNER, pin_id, keys, self.max_blocks, monotonic_s() + PROMOTE_S
            )
        except BaseException:
            blocks.release(OWNER, pin_id)
            raise
        finally:
            self._promised -= promised
        return len(held)

    def _num_new(self, keys: set[BlockKey]) -> int:
        """Those of them that no pin holds."""
        return sum(not self._pool.blocks.is_held_by(OWNER, key) for key in keys)

    def _renew(self, request: PinRequest) -> PinReply:
        pin = self._pins.release(request.pin_id)
        if pin is None:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"pin_id: there is no pin {request.pin_id} (any more); pin the keys again",
                field="pin_id",
            )
        num_blocks = self._pool.blocks.num_held(OWNER, request.pin_id)
        if request.ttl_ms:
            self._pins.grant(request.pin_id, OWNER, monotonic_s(), request.ttl_ms / 1000)
            self._timer.set()
        else:
            self._end(request.pin_id)
            num_blocks = 0
        return self._reply(request.pin_id, num_blocks)

    def _reply(self, pin_id: str, num_blocks: int) -> PinReply:
        return PinReply(
            pin_id=pin_id,
            num_blocks=num_blocks,
            pinned_blocks=self.num_blocks,
            max_pinned_blocks=self.max_blocks,
        )

    def stop(self) -> None:
        self._timer.stop()

    def _end(self, pin_id: str) -> None:
        self._pool.blocks.release(OWNER, pin_id)
        self._pool.on_change()
