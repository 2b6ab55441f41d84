"""Who counts as gone, and who does not because the bus is silent."""

from shared.worker.peer_watch import Peer, PeerWatch

OLD = Peer("gateway", "g", "1")
NEW = Peer("gateway", "g", "2")


def live(watch: PeerWatch, start_s: float, end_s: float, *peers: Peer) -> list[Peer]:
    """Half-second steps in which the bus works and `peers` report."""
    gone: list[Peer] = []
    now_s = start_s
    while now_s <= end_s:
        watch.echoed(now_s)
        for peer in peers:
            watch.heard(peer, now_s)
        gone = watch.gone(now_s)
        now_s += 0.5
    return gone


def test_a_peer_that_is_silent_for_longer_than_the_lease_is_gone() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(OLD, 0.0)
    assert live(watch, 0.0, 3.0) == []
    assert live(watch, 3.5, 3.5) == [OLD]


def test_a_peer_that_reports_stays() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(OLD, 0.0)
    assert live(watch, 0.0, 30.0, OLD) == []


def test_nobody_is_gone_while_the_bus_itself_is_silent() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(OLD, 0.0)
    live(watch, 0.0, 2.0, OLD)
    for step in range(5, 60):
        assert watch.gone(step * 0.5) == []
    assert live(watch, 30.0, 32.5) == []  # a whole lease once the bus is back
    assert live(watch, 33.0, 33.0) == [OLD]


def test_a_restarted_peer_ends_its_old_incarnation_early() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(OLD, 0.0)
    live(watch, 0.0, 1.0, OLD)
    assert live(watch, 1.5, 2.5, NEW) == []
    assert live(watch, 3.0, 3.0, NEW) == [OLD]


def test_a_late_report_of_an_old_incarnation_ends_nobody() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(NEW, 0.0)
    live(watch, 0.0, 1.0, NEW)
    watch.heard(OLD, 1.0)
    assert live(watch, 1.5, 5.0, NEW) == []


def test_a_peer_is_forgotten_with_its_last_watcher() -> None:
    watch = PeerWatch(3.0, 0.0)
    watch.watch(OLD, 0.0)
    watch.watch(OLD, 0.0)
    watch.unwatch(OLD)
    assert len(watch) == 1
    watch.unwatch(OLD)
    assert len(watch) == 0
    assert live(watch, 0.0, 10.0) == []
