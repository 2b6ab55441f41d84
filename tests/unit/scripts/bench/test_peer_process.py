"""The talk with a measuring process, with a tiny peer of our own in a real process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.peer_process import PeerError, PeerProcess, clean_env

PEER = """
import os, sys, time

def load(settings):
    print("libraries print what they like")
    if settings.get("is_broken"):
        raise RuntimeError("no such model")

    def double(number):
        print("noise")
        os.system("echo noise of a child")
        return number * 2

    def fail():
        raise ValueError("cannot do that")

    def die():
        sys.stderr.write("out of memory\\n")
        os._exit(7)

    def hang():
        time.sleep(60)

    names = {"double": double, "fail": fail, "die": die, "hang": hang}
    return {"version": "peer 1", "got": settings}, names
"""
Start = Callable[..., PeerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    module = tmp_path / "module.py"
    module.write_text(PEER)
    with ExitStack() as stack:

        def start_one(**settings: Any) -> PeerProcess:
            return stack.enter_context(
                PeerProcess(
                    "peer",
                    Path(sys.executable),
                    module,
                    settings,
                    env=clean_env(),
                    log_path=tmp_path / "log" / "peer.log",
                )
            )

        yield start_one


def test_a_peer_answers_whatever_its_libraries_print(start: Start) -> None:
    peer = start(threads=2)
    assert peer.description == {"version": "peer 1", "got": {"threads": 2}}
    assert [peer.call("double", number=number) for number in (2, 0.5)] == [4, 1.0]


def test_an_error_is_a_sentence_and_the_peer_goes_on(start: Start) -> None:
    peer = start()
    with pytest.raises(PeerError, match="peer: ValueError: cannot do that"):
        peer.call("fail")
    with pytest.raises(PeerError, match="unknown_operation"):
        peer.call("unknown_operation")
    assert peer.call("double", number=1) == 2


def test_a_peer_that_cannot_load_says_why(start: Start) -> None:
    with pytest.raises(PeerError, match="no such model"):
        start(is_broken=True)


def test_a_peer_that_dies_is_named_with_its_last_words(start: Start) -> None:
    peer = start()
    with pytest.raises(PeerError, match=r"(?s)ended \(code 7\); .*out of memory"):
        peer.call("die")
    with pytest.raises(PeerError, match="ended"):
        peer.call("double", number=1)


def test_a_late_answer_is_never_taken_for_another(start: Start) -> None:
    peer = start()
    with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
        peer.call("hang", timeout_s=0.2)
    with pytest.raises(PeerError, match="ended"):
        peer.call("double", number=1)


def test_a_closed_peer_is_gone(start: Start) -> None:
    peer = start()
    peer.close()
    with pytest.raises(PeerError, match="ended"):
        peer.call("double", number=1)


def test_our_packages_are_kept_out_of_a_peers_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/our/packages")
    env = clean_env(OMP_NUM_THREADS="2")
    assert "PYTHONPATH" not in env
    assert env["OMP_NUM_THREADS"] == "2"
