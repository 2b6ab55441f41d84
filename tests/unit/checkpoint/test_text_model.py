import subprocess
import sys
from pathlib import Path

import pytest

from shared.checkpoint import fingerprint
from shared.checkpoint.fingerprint import weights_fingerprint
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.text_model import load_text_model


def test_a_text_model_has_all_a_gateway_needs() -> None:
    model = load_text_model("dummy:tiny")
    ids = model.tokenizer.encode(model.chat_template.render([{"role": "user", "content": "Hi"}]))
    assert 0 < len(ids) < model.config.max_positions
    assert max(ids) < model.config.vocab_size == model.tokenizer.vocab_size


def test_a_text_model_is_loaded_without_torch() -> None:
    code = (
        "import sys; from shared.checkpoint.text_model import load_text_model; "
        "load_text_model('dummy:tiny'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_dummies_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    tiny, small = (weights_fingerprint(locate(f"dummy:{p}"), tmp_path) for p in ("tiny", "small"))
    assert tiny != small
    assert weights_fingerprint(locate("dummy:tiny"), tmp_path) == tiny


def test_a_fingerprint_follows_the_bytes_not_the_path(tmp_path: Path) -> None:
    prints = []
    for name, content in (("a.gguf", b"one"), ("b.gguf", b"one"), ("c.gguf", b"two")):
        (tmp_path / name).write_bytes(content)
        source = ModelSource(name, "gguf", path=tmp_path / name)
        prints.append(weights_fingerprint(source, tmp_path / "cache"))
    assert prints[0] == prints[1] != prints[2]


def test_a_changed_file_is_hashed_anew_and_an_unchanged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    source = ModelSource("m", "gguf", path=path)
    first = weights_fingerprint(source, tmp_path / "cache")
    path.write_bytes(b"another")
    assert weights_fingerprint(source, tmp_path / "cache") != first

    hashed: list[object] = []
    monkeypatch.setattr(fingerprint.hashlib, "file_digest", lambda *given: hashed.append(given))
    weights_fingerprint(source, tmp_path / "cache")
    assert hashed == []


def test_a_folder_is_all_its_weights_and_its_config(tmp_path: Path) -> None:
    source = ModelSource("m", "hf", path=tmp_path)
    prints = set()
    for name in ("config.json", "a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"1")
    prints.add(weights_fingerprint(source, tmp_path / "cache"))
    for name in ("config.json", "a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"22")
        prints.add(weights_fingerprint(source, tmp_path / "cache"))
    assert len(prints) == 4
