"""Small clusters in virtual time."""

from dataclasses import replace
from typing import Any

from shared.simulator.cluster import SimulatedCluster
from shared.simulator.hardware import Hardware, load_hardware
from shared.simulator.outcome import Outcome
from shared.simulator.settings import ClusterSettings
from shared.simulator.trace import BLOCK_TOKENS, TraceRequest


def paper_hardware(**changes: Any) -> Hardware:
    return replace(load_hardware("a800-llama3-70b"), **changes)


def request(arrival_s: float, first_id: int, num_blocks: int, output_tokens: int = 1):
    ids = tuple(range(first_id, first_id + num_blocks))
    return TraceRequest(arrival_s, num_blocks * BLOCK_TOKENS, output_tokens, ids)


def simulate(requests: list[TraceRequest], **settings: Any) -> Outcome:
    hardware = settings.pop("hardware", paper_hardware())
    small = {"num_prefills": 2, "num_decodes": 2} | settings
    return SimulatedCluster(ClusterSettings(hardware, **small)).run(requests)
