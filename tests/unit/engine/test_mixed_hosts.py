"""Hosts of different CPUs: whose KV is the same to the bit, and whose is kept apart."""

from pathlib import Path

import pytest
import torch

from shared.engine.decode import DecodeEngine
from shared.engine.errors import EngineError
from shared.engine.linear import panel_mode
from shared.engine.loaded_model import load_model
from tests.support.engine import EngineBench, random_tokens


@pytest.mark.parametrize("model", ["dummy:tiny", "dummy:small"])
def test_hosts_with_avx2_and_avx512_share_kv_in_float32_and_give_the_same_answers(
    model: str, engine_cache: Path
) -> None:
    """All of a prefill and of decode, on both, to the bit; KV of one, decoded by the other."""
    loaded = []
    for isa in ("avx2", "avx512"):
        try:
            loaded.append(load_model(model, cache_dir=engine_cache, linear_mode=panel_mode(isa)))
        except EngineError:
            pytest.skip(f"no gcc, or a CPU without {isa}")
    assert loaded[0].kv_format == loaded[1].kv_format
    assert loaded[0].kv_format.linear_mode == "panels"
    prompt = random_tokens(300, seed=3)
    benches = [EngineBench(one, num_slots=2) for one in loaded]
    logits = [bench.prefill(prompt, [0, 1]) for bench in benches]
    assert torch.equal(*logits)
    assert torch.equal(*(bench.kv([0, 1], 300) for bench in benches))
    steps = []
    for bench, other in zip(benches, reversed(benches), strict=True):
        decode = DecodeEngine(bench.loaded.model, bench.layout, capacity_tokens=400)
        other.join(decode, "a", [0, 1], 300, room=20)
        steps.append([decode.step([("a", 7 * at, 300 + at)]) for at in range(12)])
    assert all(torch.equal(*pair) for pair in zip(*steps, strict=True))


def test_kernels_of_other_sums_do_not_share_kv(engine_cache: Path) -> None:
    roots = []
    for isa in ("avx2", "avx512", "amx"):
        try:
            loaded = load_model(
                "dummy:tiny", dtype="bfloat16", cache_dir=engine_cache, linear_mode=panel_mode(isa)
            )
        except EngineError:
            continue
        roots.append(loaded.kv_format.root())
    assert len(set(roots)) == len(roots)
