"""Keeps the bills of the last requests and says them to every conductor."""

from collections import OrderedDict

from shared.messages import subjects
from shared.messages.bill import BillRequest, FinishedBill
from shared.messages.common import ErrorCode
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError

MAX_BILLS = 1_000


class Bills:
    """Owns finished bills by request id, and the last id under each name a tenant used."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bills: OrderedDict[str, FinishedBill] = OrderedDict()
        self._by_name: OrderedDict[tuple[str, str], str] = OrderedDict()

    def keep(self, bill: FinishedBill, client_id: str) -> None:
        self._bills[bill.request_id] = bill
        name = (bill.tenant, client_id)
        self._by_name.pop(name, None)
        self._by_name[name] = bill.request_id
        for kept in (self._bills, self._by_name):
            while len(kept) > MAX_BILLS:
                kept.popitem(last=False)

    def get(self, request_id: str) -> FinishedBill | None:
        """By the request's own id or by what a client called it (then the last one of all)."""
        named = (own for (_, name), own in reversed(self._by_name.items()) if name == request_id)
        return self._bills.get(next(named, request_id))

    def get_own(self, request_id: str, tenant: str) -> FinishedBill | None:
        """The same among this tenant's bills: no other's names count."""
        bill = self._bills.get(self._by_name.get((tenant, request_id), request_id))
        return bill if bill is not None and bill.tenant == tenant else None

    async def publish(self, bill: FinishedBill) -> None:
        await self._bus.publish(subjects.FINISHED_BILLS, bill)

    async def on_request(self, request: BillRequest) -> FinishedBill:
        bill = self.get(request.request_id)
        if bill is None:
            raise ServiceError(
                ErrorCode.BAD_REQUEST,
                f"no bill of {request.request_id}: it has not finished, or is older than the "
                f"last {MAX_BILLS}",
                field="request_id",
            )
        return bill
