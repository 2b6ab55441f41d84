"""A live cluster as coupled instances, the baseline without disaggregation and without a pool.

Every worker prefills and decodes. A request goes to the worker with the fewest tokens under way, as
in the simulator's baseline, decodes where it was prefilled, and finds what its own node computed
before: nothing is fetched. Afterwards the workers have their roles back.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

from scripts.cli.output import CommandError
from scripts.cli.role import change_role
from scripts.cli.target import Target, conductor_state
from scripts.replay.plan import PlannedRequest
from shared.messages.conductor import StateReply
from shared.messages.worker import WorkerRole

COUPLED = "coupled"
POLICY_OF_COUPLED = "local_cache_aware"
"""It fetches nothing, which is all that counts: the instances are named."""
SWITCH_TIMEOUT_S = 60.0


class FewestTokens:
    """Chooses for every request; its caller says when one has ended."""

    def __init__(self, instances: Sequence[str]) -> None:
        self._tokens = dict.fromkeys(sorted(instances), 0)

    def begin(self, planned: PlannedRequest) -> dict[str, str]:
        """The placement of a request that is sent now."""
        chosen = min(self._tokens, key=lambda name: self._tokens[name])
        self._tokens[chosen] += planned.num_tokens + planned.output_tokens
        return {"prefill": chosen, "decode": chosen}

    def end(self, planned: PlannedRequest, placement: Mapping[str, str]) -> None:
        self._tokens[placement["prefill"]] -= planned.num_tokens + planned.output_tokens


@asynccontextmanager
async def as_coupled(target: Target) -> AsyncIterator[FewestTokens]:
    """Raises CommandError when a worker does not change its role in time."""
    if not target.admin_key:
        raise CommandError(
            "--compare coupled: needs the admin key of the gateway",
            hint="give --admin-key, or set MOONPOOL_ADMIN_KEY",
        )
    before = roles_of(await conductor_state(target, "replay"))
    changed = {name: role for name, role in before.items() if role != "both"}
    try:
        await _change(target, dict.fromkeys(changed, "both"))
        yield FewestTokens(list(before))
    finally:
        await _change(target, changed)


def roles_of(state: StateReply) -> dict[str, WorkerRole]:
    """By worker; one that reports in two roles does both."""
    found: dict[str, WorkerRole] = {}
    for one in state.instances:
        if one.state == "ready":
            found[one.id] = "both" if one.id in found else cast(WorkerRole, one.service)
    return found


async def _change(target: Target, roles: Mapping[str, WorkerRole]) -> None:
    await asyncio.gather(
        *(change_role(target, name, role, SWITCH_TIMEOUT_S) for name, role in roles.items())
    )
