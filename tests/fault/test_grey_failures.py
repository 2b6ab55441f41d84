"""Healthy by the heartbeat and sick in its work: kept out by what others saw, then taken back."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from shared.messages import subjects
from shared.messages.common import Empty
from shared.messages.conductor import StateReply
from tests.support.api import Answer
from tests.support.cluster import HostedCluster, dummy_options
from tests.support.deadline import until
from tests.support.load import Load
from tests.support.seams import Seams

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]


class Sick:
    """A cluster of which one process can be made sick."""

    def __init__(self, cluster: HostedCluster, seams: Seams) -> None:
        self.cluster = cluster
        self.seams = seams
        self.load = Load(cluster)
        self._number = 0

    async def quarantined(self) -> dict[str, str]:
        """State of what is kept out, by name."""
        bus, call = self.cluster.cluster.bus, self.cluster.call
        asked = bus.request(subjects.CONDUCTOR_STATE, Empty(), StateReply, timeout_s=5)
        state = await asyncio.to_thread(call, asked)
        return {one.id: one.state for one in state.quarantined}

    async def ask_all(self, client: httpx.AsyncClient) -> list[Answer]:
        """Every prompt at once, new to all caches; each answer must be the right one."""
        self._number += 1
        api, load = self.load.api, self.load
        answers = await asyncio.gather(
            *(
                api.complete_async(
                    client, prompt, max_tokens=len(wanted), cache_salt=f"{self._number // 2}"
                )
                for prompt, wanted in zip(load.prompts, load.wanted, strict=True)
            )
        )
        assert [answer.tokens for answer in answers] == load.wanted
        return answers

    async def ask_until_out(self, client: httpx.AsyncClient, name: str) -> None:
        async def is_out() -> bool:
            await self.ask_all(client)
            return (await self.quarantined()).get(name) == "out"

        await until(is_out, timeout_s=90, what=f"{name} is quarantined")

    async def ask_until_back(self, client: httpx.AsyncClient) -> None:
        async def is_back() -> bool:
            await self.ask_all(client)
            return not await self.quarantined()

        await until(is_back, timeout_s=120, what="it was probed and is back")


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sick]:
    folder = tmp_path_factory.mktemp("seams")
    seams = Seams(folder)
    options = dummy_options(extra_env=seams.environment, policy="round_robin")
    with HostedCluster(options) as cluster:
        yield Sick(cluster, seams)


@pytest.mark.parametrize(("flag", "name"), [("slow", "prefill-1"), ("unreadable", "node-1")])
async def test_what_is_sick_is_kept_out_until_it_is_well_again(
    sick: Sick, flag: str, name: str
) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await sick.ask_all(client)
        assert await sick.quarantined() == {}
        sick.seams.set_flag(flag, name)
        try:
            await sick.ask_until_out(client, name)
            answers = await sick.ask_all(client)
            still_out = (await sick.quarantined()).get(name) == "out"
            used = {answer.served["prefill"] for answer in answers}
            assert not still_out or used == {"prefill-2"}
        finally:
            sick.seams.clear_flag(flag, name)
        await sick.ask_until_back(client)
    await sick.load.all_is_given_back()
    assert not sick.cluster.deaths
