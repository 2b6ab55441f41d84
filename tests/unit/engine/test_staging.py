"""Staging buffers in turn: none is used before its last copy is done, layers stay in order."""

import torch

from shared.engine.staging import LayerStores, StagingRing
from tests.support.deferred_streams import DeferredStreams

DEPTH = 3


def test_more_layers_than_buffers_arrive_whole_and_in_order() -> None:
    streams = DeferredStreams()
    ring = StagingRing(streams, DEPTH, (4,), torch.float32)
    stores = LayerStores(DEPTH)
    pool = torch.zeros(10, 4)
    arrived: list[int] = []
    for layer in range(10):
        arrived += stores.make_room()
        staged = ring.take()
        ticket = streams.to_host([(staged, torch.full((4,), float(layer)))])
        ring.used_by(ticket)
        target = pool[layer]
        stores.add(layer, ticket, lambda staged=staged, target=target: target.copy_(staged))  # type: ignore[misc]
        assert stores.arrived() == []  # nobody has waited for it
        assert layer - len(arrived) < DEPTH
    arrived += stores.drain()
    assert arrived == list(range(10))
    assert torch.equal(pool, torch.arange(10.0)[:, None].expand(10, 4))


def test_dropped_layers_are_waited_for_and_do_not_reach_the_pool() -> None:
    streams = DeferredStreams()
    stores = LayerStores(DEPTH)
    written: list[int] = []
    ticket = streams.to_host([(torch.zeros(1), torch.ones(1))])
    stores.add(0, ticket, lambda: written.append(0))
    stores.drop()
    assert ticket.is_done()
    assert (written, stores.drain()) == ([], [])
