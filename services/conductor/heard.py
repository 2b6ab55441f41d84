"""The last report of every process, and the models they serve. Pure; time is given."""

from typing import Generic, TypeVar

from shared.messages.conductor import ModelInfo
from shared.messages.reports import (
    LEASE_S,
    GatewayReport,
    InstanceReport,
    NodeReport,
    is_superseded,
)

R = TypeVar("R", InstanceReport, NodeReport, GatewayReport)
FORGET_AFTER_S = 60.0


class Heard(Generic[R]):
    """Reports by (service, id); those that are older than a lease are not given out."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], tuple[R, float]] = {}

    def hear(self, report: R, now_s: float) -> None:
        key = (report.service, report.id)
        known = self._reports.get(key)
        if known and now_s - known[1] <= LEASE_S and is_superseded(report, known[0]):
            return
        self._reports.pop(key, None)  # the one heard longest ago stays first
        self._reports[key] = (report, now_s)
        oldest = next(iter(self._reports))
        if now_s - self._reports[oldest][1] > FORGET_AFTER_S:
            del self._reports[oldest]

    def forget(self, service: str, process_id: str, incarnation: str) -> None:
        known = self._reports.get((service, process_id))
        if known is not None and known[0].incarnation == incarnation:
            del self._reports[service, process_id]

    def current(self, now_s: float) -> list[R]:
        live = [report for report, heard_s in self._reports.values() if now_s - heard_s <= LEASE_S]
        return sorted(live, key=lambda report: (report.service, report.id))


def models_of(reports: list[InstanceReport]) -> list[ModelInfo]:
    """Models that ready instances serve; of two formats the one of more instances."""
    by_format: dict[tuple[str, bytes], list[InstanceReport]] = {}
    for report in reports:
        if report.state == "ready" and report.model:
            by_format.setdefault((report.model, report.root), []).append(report)
    best: dict[str, list[InstanceReport]] = {}
    for (model, _), serving in sorted(by_format.items()):
        if len(serving) > len(best.get(model, ())):
            best[model] = serving
    return [_model(serving) for _, serving in sorted(best.items())]


def _model(serving: list[InstanceReport]) -> ModelInfo:
    first = serving[0]
    return ModelInfo(
        name=first.model,
        root=first.root,
        kv_format=first.kv_format,
        block_tokens=first.block_tokens,
        grid_tokens=first.grid_tokens,
        context_tokens=min(report.context_tokens for report in serving),
        block_bytes=first.block_bytes,
    )
