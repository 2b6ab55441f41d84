"""Turns: a bound for each peer, the urgent first, background under its share, nothing forgotten."""

import asyncio

import pytest

from services.transfer.flow import Flow, Urgency


async def hold(
    flow: Flow,
    log: list[str],
    name: str,
    size: int,
    urgency: Urgency,
    peer: str = "a",
    until: asyncio.Event | None = None,
) -> None:
    async with flow.turn(peer, size, urgency):
        log.append(name)
        if until is not None:
            await until.wait()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_peer_has_so_many_bytes_in_flight_and_no_more() -> None:
    flow, log, end = Flow(max_peer_bytes=10), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for name in "xyz":
            group.create_task(hold(flow, log, name, 5, Urgency.REQUEST, until=end))
        group.create_task(hold(flow, log, "other peer", 5, Urgency.REQUEST, "b", end))
        await turns()
        assert log == ["x", "y", "other peer"]
        assert flow.by_peer == {"a": 10, "b": 5}
        assert flow.bytes_in_flight == 15
        end.set()
    assert log[-1] == "z"
    assert flow.by_peer == {}


async def test_what_is_larger_than_the_bound_goes_alone() -> None:
    flow, log, end = Flow(max_peer_bytes=10), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(flow, log, "large", 100, Urgency.REQUEST, until=end))
        group.create_task(hold(flow, log, "small", 1, Urgency.REQUEST))
        await turns()
        assert log == ["large"]
        end.set()


async def test_the_urgent_goes_first_and_equals_in_order() -> None:
    flow, log, end = Flow(max_peer_bytes=1), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(flow, log, "first", 1, Urgency.REQUEST, until=end))
        await turns()
        group.create_task(hold(flow, log, "background", 1, Urgency.BACKGROUND))
        for number in range(3):
            group.create_task(hold(flow, log, f"request {number}", 1, Urgency.REQUEST))
        group.create_task(hold(flow, log, "stream", 1, Urgency.STREAM))
        await turns()
        end.set()
    assert log == ["first", "stream", "request 0", "request 1", "request 2", "background"]


async def test_who_gives_up_waiting_is_skipped_and_its_bytes_are_not_counted() -> None:
    flow, log, end = Flow(max_peer_bytes=1), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(flow, log, "first", 1, Urgency.REQUEST, until=end))
        await turns()
        leaving = asyncio.ensure_future(hold(flow, log, "leaves", 1, Urgency.REQUEST))
        group.create_task(hold(flow, log, "last", 1, Urgency.REQUEST))
        await turns()
        leaving.cancel()
        await turns()
        end.set()
    assert log == ["first", "last"]
    assert flow.by_peer == {}
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_turn_that_comes_as_its_owner_leaves_is_given_on() -> None:
    flow, log, end = Flow(max_peer_bytes=1), list[str](), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(flow, log, "first", 1, Urgency.REQUEST, until=end))
        await turns()
        leaving = asyncio.ensure_future(hold(flow, log, "leaves", 1, Urgency.REQUEST))
        group.create_task(hold(flow, log, "last", 1, Urgency.REQUEST))
        await turns()
        end.set()
        await first
        leaving.cancel()  # it has the turn and has not run yet
    assert log[-1] == "last"
    assert flow.by_peer == {}
    await asyncio.wait([leaving])


async def test_background_takes_its_share_beside_others_and_all_of_an_idle_node() -> None:
    now_s = 0.0
    flow = Flow(background_share=0.25, now_s=lambda: now_s)
    async with flow.turn("a", 1, Urgency.BACKGROUND):
        now_s = 1.0
    async with (
        flow.turn("a", 1, Urgency.BACKGROUND),  # alone: at once
        flow.turn("b", 1, Urgency.REQUEST),
    ):
        now_s = 1.02
    before_s = asyncio.get_running_loop().time()
    async with flow.turn("a", 1, Urgency.BACKGROUND):  # it took 20 ms, so it waits 60
        assert asyncio.get_running_loop().time() - before_s >= 0.05


async def test_a_waiter_that_is_cancelled_just_as_room_comes_ends_as_cancelled() -> None:
    flow, log = Flow(max_peer_bytes=1), list[str]()
    first = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        holder = group.create_task(hold(flow, log, "a", 1, Urgency.REQUEST, until=first))
        await turns()
        waiter = group.create_task(hold(flow, log, "b", 1, Urgency.REQUEST))
        await turns()
        holder.cancel()  # gives back before the waiter, cancelled with it, has left the line
        waiter.cancel()
        await asyncio.wait({holder, waiter})
        assert holder.cancelled()
        assert waiter.cancelled()
        await hold(flow, log, "c", 1, Urgency.REQUEST)
    assert log == ["a", "c"]
    assert flow.by_peer == {}
