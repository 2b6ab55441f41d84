from dataclasses import replace
from pathlib import Path

import pytest

from scripts.bench.peers import PEERS, PeerEnvironment, PeerSetupError, environment


@pytest.fixture
def peer(tmp_path: Path) -> PeerEnvironment:
    """Not made yet."""
    return environment("hf", tmp_path)


def made(env: PeerEnvironment) -> None:
    env.python.parent.mkdir(parents=True)
    env.python.touch()
    (env.folder / "moonpool-peer.txt").write_text("\n".join(env.peer.packages))


def test_an_absent_peer_says_which_command_sets_it_up(peer: PeerEnvironment) -> None:
    assert not peer.is_ready
    assert "moonpool bench --setup-peers hf" in peer.why_absent


def test_a_peer_is_ready_only_with_what_is_wanted_now(peer: PeerEnvironment) -> None:
    made(peer)
    assert peer.is_ready
    newer = PeerEnvironment(replace(peer.peer, packages=("transformers==99",)), peer.folder)
    assert not newer.is_ready


def test_a_half_made_environment_is_not_ready(peer: PeerEnvironment) -> None:
    made(peer)
    peer.python.unlink()
    assert not peer.is_ready


def test_what_is_there_is_left_as_it_is(peer: PeerEnvironment) -> None:
    made(peer)
    lines: list[str] = []
    peer.set_up(lines.append)
    assert lines == []


def test_an_install_that_fails_says_what_and_where_to_look(
    peer: PeerEnvironment, tmp_path: Path
) -> None:
    missing = tmp_path / "no-such-package"
    env = PeerEnvironment(replace(peer.peer, packages=(str(missing),)), peer.folder)
    lines: list[str] = []
    with pytest.raises(PeerSetupError, match="no-such-package") as caught:
        env.set_up(lines.append)
    assert str(tmp_path / "peers" / "hf.log") in str(caught.value)
    assert not env.is_ready
    assert lines


@pytest.mark.parametrize("name", PEERS)
def test_what_measures_a_peer_is_there(name: str) -> None:
    module = PEERS[name].module
    assert module is None or module.is_file()
