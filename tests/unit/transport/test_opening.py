"""Which transports are opened, by what settings say and what the machine has."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.transport.copying import PlainCopier
from shared.transport.listening import ListenError, default_host, parse_ports
from shared.transport.opening import (
    OPENERS,
    Opened,
    Place,
    TransportOptions,
    Unavailable,
    open_transports,
    parse_names,
)
from shared.transport.segment import Segment


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    segment = Segment.create(tmp_path / "n.1.seg", num_slots=2, block_bytes=64)
    options = TransportOptions(["local", "tcp"], nats_url="nats://127.0.0.1:4222")
    yield Place(segment, "n", "1", PlainCopier(), options)
    segment.close()


def test_names_are_known_and_kept_in_order() -> None:
    assert parse_names(" tcp, local ,tcp") == ["tcp", "local"]
    with pytest.raises(ValueError, match="'ucp' is no transport; there are local, rdma, tcp"):
        parse_names("local,ucp")
    with pytest.raises(ValueError, match="name one"):
        parse_names(" ,")


def test_ports_are_one_or_a_range() -> None:
    assert parse_ports("") == range(0, 1)
    assert parse_ports("7400") == range(7400, 7401)
    assert parse_ports("7400-7402") == range(7400, 7403)
    for bad in ("0", "70000", "7402-7400", "a", "1-2-3"):
        with pytest.raises(ValueError, match="port"):
            parse_ports(bad)


async def test_both_are_there_and_described(place: Place) -> None:
    opened = await open_transports(place)
    assert opened.router.names == ["local", "tcp"]
    assert opened.has_local
    assert opened.tcp is not None
    assert (opened.tcp.host, len(opened.tcp.capability)) == ("127.0.0.1", 32)
    assert opened.tcp.port > 0
    assert opened.rdma is None
    await opened.router.close()


async def test_what_cannot_be_opened_is_left_out_with_its_reason(place: Place) -> None:
    async def fails(_: Place) -> Opened:
        raise Unavailable("no device")

    wanted = replace(place, options=replace(place.options, names=["rdma", "tcp"]))
    opened = await open_transports(wanted, {**OPENERS, "rdma": fails})
    assert opened.router.names == ["tcp"]
    assert opened.missing == {"rdma": "no device"}
    await opened.router.close()
    alone = replace(place, options=replace(place.options, names=["rdma"]))
    with pytest.raises(Unavailable, match=r"MOONPOOL_TRANSPORTS.*rdma: no device"):
        await open_transports(alone, {"rdma": fails})


async def test_a_host_without_an_address_is_named(place: Place) -> None:
    options = replace(place.options, names=["tcp"], tcp_host="no-such-host.invalid")
    with pytest.raises(Unavailable, match=r"MOONPOOL_TCP_HOST=no-such-host\.invalid"):
        await open_transports(replace(place, options=options))


async def test_a_port_that_is_taken_is_left_for_the_next(place: Place) -> None:
    first = await open_transports(place)
    assert first.tcp is not None
    port = first.tcp.port
    only = replace(place.options, names=["tcp"], tcp_ports=str(port))
    with pytest.raises(Unavailable, match="MOONPOOL_TCP_PORTS"):
        await open_transports(replace(place, options=only))
    several = replace(only, tcp_ports=f"{port}-{min(port + 20, 65_535)}")
    second = await open_transports(replace(place, options=several))
    assert second.tcp is not None
    assert second.tcp.port != port
    await first.router.close()
    await second.router.close()


async def test_the_default_host_is_on_the_way_to_nats() -> None:
    assert await default_host("nats://127.0.0.1:4222") == "127.0.0.1"
    assert await default_host("nats://user:word@[::1]:4222,nats://other") in ("::1", "127.0.0.1")
    assert await default_host("nats://no-such-host.invalid:4222") == "127.0.0.1"
    assert issubclass(ListenError, Exception)
