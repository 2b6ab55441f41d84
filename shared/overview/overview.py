"""Everything that is known of a cluster, in the form that dashboard and `moonpool top` show.

Pure: it is told what was heard and when. Each section of `sections` stays equal while nothing in
it changes, so that who shows it can leave it alone.
"""

from typing import Any

from shared.messages.conductor import StateReply
from shared.messages.index import HotReply, IndexStats
from shared.messages.micro import MicroPing
from shared.messages.recent import KEPT_REQUESTS, EndedRequest
from shared.messages.reports import GatewayReport, NodeReport
from shared.overview.members import Members, Report, state_of
from shared.overview.nodes import Rates, instances_of, links_of, nodes_of
from shared.overview.requests import RequestLog, Slos, detail_of, row_of
from shared.overview.series import series_of, summary_of


class Overview:
    def __init__(self, max_requests: int = KEPT_REQUESTS) -> None:
        self.members = Members()
        self.requests = RequestLog(max_requests)
        self.is_connected = True
        self.unanswered: dict[str, str] = {}
        """Questions that nobody answered, and why."""
        self._rates = Rates()
        self._state = StateReply(conductor="")
        self._index: IndexStats | None = None
        self._hot = HotReply()

    # --- what was heard ------------------------------------------------------------------------
    def hear(self, report: Report, now_s: float) -> None:
        self.members.hear(report, now_s)
        if isinstance(report, NodeReport):
            self._rates.hear(report, now_s)

    def note_answers(self, pings: list[MicroPing], now_s: float) -> None:
        self.members.note_answers(pings, now_s)

    def note_state(self, state: StateReply, now_s: float) -> None:
        """A conductor knows at once who is there; later each one's own word counts."""
        self._state = state
        reports: list[Report] = [*state.instances, *state.nodes, *state.gateways]
        for report in reports:
            if not self.members.is_known(report):
                self.hear(report, now_s)

    def note_index(self, stats: IndexStats, hot: HotReply) -> None:
        self._index, self._hot = stats, hot

    def note_ended(
        self, gateway: str, incarnation: str, ended_s: float, request: EndedRequest
    ) -> None:
        self.requests.add(gateway, incarnation, ended_s, request)

    # --- what is shown -------------------------------------------------------------------------
    @property
    def slos(self) -> Slos:
        return self._state.slos

    def sections(self, now_s: float) -> dict[str, Any]:
        """By name; everything but the requests themselves."""
        self.members.forget_old(now_s)
        self._rates.keep_only({node.id for node, _ in self.members.reports(NodeReport)})
        return {
            "cluster": self._cluster(now_s),
            "nodes": nodes_of(self.members, self._rates, now_s),
            "links": links_of(self.members, self._rates, now_s),
            "instances": instances_of(self.members, now_s),
            "index": self._index_section(),
            "hot": self._hot_section(),
            "summary": summary_of(self.requests, self.slos, now_s),
            "series": series_of(self.requests, self.slos, now_s),
        }

    def row(self, key: str) -> dict[str, Any] | None:
        seen = self.requests.get(key)
        return None if seen is None else row_of(seen, self.slos)

    def rows(self) -> list[dict[str, Any]]:
        """Requests in the order in which they were heard of."""
        return [row_of(seen, self.slos) for seen in self.requests]

    def detail(self, key: str) -> dict[str, Any] | None:
        seen = self.requests.get(key)
        return None if seen is None else detail_of(seen, self.slos)

    def _cluster(self, now_s: float) -> dict[str, Any]:
        state = self._state
        problems = [] if self.is_connected else ["cut off from NATS: what is shown is old"]
        if self.is_connected:
            problems += self.members.problems(now_s)
            problems += [
                f"{who} does not answer: {why}"
                for who, why in self.unanswered.items()
                if f"no {who} is there" not in problems
            ]
        return {
            "is_connected": self.is_connected,
            "problems": problems,
            "models": [
                {"name": one.name, "context_tokens": one.context_tokens} for one in state.models
            ],
            "policy": state.policy,
            "admission": state.admission,
            "in_flight": sum(
                report.in_flight
                for report, heard_s in self.members.reports(GatewayReport)
                if state_of(report, heard_s, now_s) != "gone"
            ),
            "slos": {
                model: {"ttft_s": slo.allowed_ttft_s, "tbt_s": slo.allowed_tbt_s}
                for model, slo in state.slos.items()
            },
            "prediction_errors": {
                model: {name: error.model_dump() for name, error in errors.items()}
                for model, errors in state.prediction_errors.items()
            },
            "replication": (None if state.replication is None else state.replication.model_dump()),
            "processes": self.members.processes(now_s),
        }

    def _index_section(self) -> dict[str, Any] | None:
        if self._index is None:
            return None
        names = {"num_keys", "num_blocks", "nodes", "is_redis_up", "mirror_fill", "evicted_total"}
        return self._index.model_dump(include=names)

    def _hot_section(self) -> list[dict[str, Any]]:
        block_tokens = next((one.block_tokens for one in self._state.models), 0)
        return [
            {
                "key": one.key.hex(),
                "num_blocks": one.num_blocks,
                "num_tokens": one.num_blocks * block_tokens,
                "uses_per_s": round(one.uses_per_s, 2),
                "nodes": sorted(one.nodes),
            }
            for one in self._hot.prefixes
        ]
