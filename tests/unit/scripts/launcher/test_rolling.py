"""Which processes a rolling restart takes, and what it does of one that has ended."""

from typing import Any

import psutil
import pytest

from scripts.launcher import rolling
from scripts.launcher.errors import LaunchError
from scripts.launcher.readiness import Member
from scripts.launcher.rolling import Running, processes_of, restart_all

NATS = "nats://127.0.0.1:4222"


class FakeProcess:
    def __init__(self, module: str, name: str, born_s: float, nats_url: str = NATS) -> None:
        self._argv = ["python", "-P", "-m", module]
        self._env = {"MOONPOOL_INSTANCE_ID": name, "MOONPOOL_NATS_URL": nats_url}
        self._born_s = born_s

    def cmdline(self) -> list[str]:
        return self._argv

    def environ(self) -> dict[str, str]:
        return self._env

    def create_time(self) -> float:
        return self._born_s


class EndedProcess(FakeProcess):
    def cmdline(self) -> list[str]:
        raise psutil.NoSuchProcess(1)


@pytest.mark.parametrize("is_old_first", [True, False])
def test_of_a_gateway_that_hands_over_the_successor_is_taken(
    is_old_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (FakeProcess("services.gateway", "gateway-1", born_s) for born_s in (1.0, 2.0))
    children: list[Any] = [
        FakeProcess("services.prefill", "prefill-1", 1.0),
        EndedProcess("services.decode", "decode-1", 1.0),
        FakeProcess("services.gateway", "gateway-9", 1.0, nats_url="nats://other:4222"),
        *((old, new) if is_old_first else (new, old)),
    ]

    class Launcher:
        def __init__(self, pid: int) -> None:
            assert pid == 7

        def children(self) -> list[Any]:
            return children

    monkeypatch.setattr(psutil, "Process", Launcher)
    found = processes_of(7, NATS)
    assert [one.member.id for one in found] == ["gateway-1", "prefill-1"]
    assert found[0].process is new  # type: ignore[comparison-overlap]


async def test_one_that_has_ended_meanwhile_is_said_and_the_rest_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pid may be another process by now, which must get no signal."""

    async def unknown(*_: Any) -> None:
        return None

    signalled: list[str] = []

    class Gone:
        def send_signal(self, _: int) -> None:
            raise psutil.NoSuchProcess(9)

    class Alive:
        def send_signal(self, _: int) -> None:
            signalled.append("decode-1")

    monkeypatch.setattr(rolling, "_known_incarnation", unknown)
    chosen: list[Any] = [
        Running(Member("prefill", "prefill-1"), Gone()),  # type: ignore[arg-type]
        Running(Member("decode", "decode-1"), Alive()),  # type: ignore[arg-type]
    ]
    with pytest.raises(LaunchError, match="prefill-1 has ended meanwhile"):
        await anext(restart_all(None, None, "http://x", chosen, 5.0))  # type: ignore[arg-type]
    assert signalled == []
