"""Requests that ended, newest last, and what tables and charts say of each. Pure."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.messages.bill import Reuse, Times
from shared.messages.common import Targets
from shared.messages.recent import KEPT_REQUESTS, EndedRequest
from shared.scheduling.slo import Served, Slo, meets

NO_SLO = Slo()
Slos = Mapping[str, Targets]
"""The deployment's own targets by model."""


@dataclass(frozen=True, slots=True)
class Seen:
    """`ended_s` is by the viewer's own clock."""

    key: str
    gateway: str
    ended_s: float
    request: EndedRequest

    @property
    def served(self) -> Served | None:
        """None when it was not answered whole."""
        bill = self.request.bill
        if self.request.ending != "finished" or bill is None:
            return None
        return Served(bill.real.ttft_s, bill.real.tbt_s)

    @property
    def is_asked(self) -> bool:
        """Counts against the cluster; what its client gave up does not."""
        return self.request.ending != "cancelled"

    def slo(self, slos: Slos) -> Slo:
        """Its own targets and the deployment's."""
        request = self.request
        of_deployment = slos.get(request.model, Targets())
        own = Slo(_seconds(request.ttft_slo_ms), _seconds(request.tbt_slo_ms))
        return own.and_also(Slo(of_deployment.allowed_ttft_s, of_deployment.allowed_tbt_s))


class RequestLog:
    """The last ones of all gateways together."""

    def __init__(self, max_kept: int = KEPT_REQUESTS) -> None:
        self._max_kept = max_kept
        self._seen: OrderedDict[str, Seen] = OrderedDict()

    def add(self, gateway: str, incarnation: str, ended_s: float, request: EndedRequest) -> None:
        """One that is known already changes nothing."""
        key = f"{gateway}.{incarnation}.{request.number}"
        if key in self._seen:
            return
        self._seen[key] = Seen(key, gateway, ended_s, request)
        while len(self._seen) > self._max_kept:
            self._seen.popitem(last=False)

    def get(self, key: str) -> Seen | None:
        return self._seen.get(key)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._seen.values())

    def __len__(self) -> int:
        return len(self._seen)


def tokens_by_source(reuse: Reuse) -> dict[str, int]:
    """Where the KV of the prompt came from; `none`: it was computed."""
    return {
        "none": max(0, reuse.prompt_tokens - reuse.cached_tokens),
        "local": reuse.local_tokens - reuse.disk_tokens,
        "remote": reuse.remote_tokens,
        "disk": reuse.disk_tokens,
    }


def row_of(seen: Seen, slos: Slos) -> dict[str, Any]:
    """What lists and timelines show."""
    request, bill = seen.request, seen.request.bill
    row: dict[str, Any] = {
        "key": seen.key,
        "id": request.client_id,
        "gateway": seen.gateway,
        "model": request.model,
        "ended_s": round(seen.ended_s, 3),
        "took_s": round(request.took_s, 4),
        "ending": request.ending,
        "code": None if request.error is None else str(request.error.code),
        "message": None if request.error is None else request.error.message,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "wasted_prefill_s": round(request.wasted_prefill_s, 4),
        "user": request.user,
        "tenant": request.tenant,
        "is_met": _is_met(seen, slos),
    }
    if bill is None:
        return row
    return row | {
        "prefill": bill.prefill.id,
        "decode": None if bill.decode is None else bill.decode.id,
        "prefill_node": bill.prefill.node,
        "decode_node": None if bill.decode is None else bill.decode.node,
        "attempts": bill.attempts,
        "tokens": tokens_by_source(bill.reuse),
        "scored_tokens": bill.reuse.scored_tokens,
        "fetched_bytes": bill.reuse.fetched_bytes,
        "streamed_bytes": bill.reuse.streamed_bytes,
        "transport": bill.reuse.transport,
        "decode_s": round(bill.decode_s, 4),
        "predicted": _stages(bill.predicted),
        "real": _stages(bill.real),
    }


def detail_of(seen: Seen, slos: Slos) -> dict[str, Any]:
    """Its row with all decisions and the whole bill."""
    request = seen.request
    return row_of(seen, slos) | {
        "request_id": request.request_id,
        "bill": None if request.bill is None else request.bill.model_dump(mode="json"),
        "decisions": [one.model_dump(mode="json") for one in request.decisions],
    }


def _is_met(seen: Seen, slos: Slos) -> bool | None:
    """None: it has no target, or was not asked to the end."""
    slo = seen.slo(slos)
    if slo == NO_SLO or not seen.is_asked:
        return None
    return seen.served is not None and meets(seen.served, slo)


def _stages(times: Times) -> dict[str, float]:
    return {
        name: round(getattr(times, name), 5)
        for name in ("queue_s", "load_s", "compute_s", "handoff_s", "ttft_s", "tbt_s")
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
