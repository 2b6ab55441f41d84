"""Which faults a soak draws."""

import random

from scripts.soak.breaking import STOPPED_S, next_plan

TARGETS = ["gateway-1", "prefill-1", "nats"]


def test_every_process_is_hit_in_every_way_but_no_gateway_is_killed() -> None:
    rng = random.Random(1)
    plans = [next_plan(rng, TARGETS, 10.0) for _ in range(300)]
    drawn = {(plan.process, plan.signal) for plan in plans}
    every = {(name, kind) for name in TARGETS for kind in ("SIGKILL", "SIGSTOP", "SIGTERM")}
    assert drawn == every - {("gateway-1", "SIGKILL")}
    assert all(5.0 <= plan.wait_s <= 15.0 for plan in plans)
    for plan in plans:
        lasts = STOPPED_S[0] <= plan.stopped_s <= STOPPED_S[1]
        assert lasts if plan.signal == "SIGSTOP" else plan.stopped_s == 0.0
