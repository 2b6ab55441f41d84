"""Who is there: processes, instances, nodes and gateways by their last words. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from shared.messages.micro import MicroPing
from shared.messages.reports import (
    LEASE_S,
    GatewayReport,
    InstanceReport,
    NodeReport,
    is_superseded,
)

Report = InstanceReport | NodeReport | GatewayReport
R = TypeVar("R", InstanceReport, NodeReport, GatewayReport)
SERVICES = ("gateway", "conductor", "cache-index", "transfer", "prefill", "decode")
FORGET_S = 60.0
"""What was not heard of for so long is no longer shown as missing."""
MAX_MEMBERS = 2_048
MISSED_PINGS_S = 5.0
"""After so long without an answer a process that sends no reports is taken for gone."""


@dataclass(slots=True)
class _Heard:
    report: Report
    heard_s: float


class Members:
    """`now_s` never goes back."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._answered: dict[tuple[str, str], float] = {}
        self._has_asked = False

    def hear(self, report: Report, now_s: float) -> None:
        key = (report.service, report.id)
        known = self._heard.get(key)
        if known and now_s - known.heard_s < LEASE_S and is_superseded(report, known.report):
            return
        if known or len(self._heard) < MAX_MEMBERS:
            self._heard[key] = _Heard(report, now_s)

    def is_known(self, report: Report) -> bool:
        return (report.service, report.id) in self._heard

    def note_answers(self, pings: Iterable[MicroPing], now_s: float) -> None:
        """These processes answered a question to all."""
        self._has_asked = True
        for ping in pings:
            if ping.role in SERVICES and len(self._answered) < MAX_MEMBERS:
                self._answered[ping.role, ping.name_of] = now_s

    def forget_old(self, now_s: float) -> None:
        self._heard = {k: v for k, v in self._heard.items() if now_s - v.heard_s < FORGET_S}
        self._answered = {k: at_s for k, at_s in self._answered.items() if now_s - at_s < FORGET_S}

    def reports(self, kind: type[R]) -> Iterator[tuple[R, float]]:
        """(report, when it was heard) by service and id."""
        for _, one in sorted(self._heard.items()):
            if isinstance(one.report, kind):
                yield one.report, one.heard_s

    def live_gateways(self, now_s: float) -> list[str]:
        return [
            report.id
            for report, heard_s in self.reports(GatewayReport)
            if now_s - heard_s < LEASE_S
        ]

    def processes(self, now_s: float) -> list[dict[str, Any]]:
        """One line for each process with its state: as it says, `answers`, or `gone`."""
        lines = []
        for service, name in {*self._heard, *self._answered}:
            heard = self._heard.get((service, name))
            lines.append({"service": service, "id": name, "state": self._state(heard, now_s)})
            if heard is None:
                age_s = now_s - self._answered[service, name]
                lines[-1]["state"] = "answers" if age_s < MISSED_PINGS_S else "gone"
        return sorted(lines, key=lambda line: (SERVICES.index(line["service"]), line["id"]))

    def problems(self, now_s: float) -> list[str]:
        """What is missing or not ready; empty when nothing is, and before all were asked."""
        if not self._has_asked:
            return []
        lines = self.processes(now_s)
        good = {line["service"] for line in lines if line["state"] in ("ready", "answers")}
        found = [f"no {service} is there" for service in SERVICES if service not in good]
        found += [
            f"{line['id']} is {line['state']}"
            for line in lines
            if line["state"] not in ("ready", "answers")
        ]
        return found

    @staticmethod
    def _state(heard: _Heard | None, now_s: float) -> str:
        return "gone" if heard is None else state_of(heard.report, heard.heard_s, now_s)


def state_of(report: Report, heard_s: float, now_s: float) -> str:
    """As it says of itself; `gone` when it has been silent for a lease."""
    return report.state if now_s - heard_s < LEASE_S else "gone"
