"""The angles of scaled positions. Whole models are compared in test_families."""

from dataclasses import replace

import pytest
import torch

from shared.checkpoint.locate import locate
from shared.checkpoint.model_config import ModelConfig, load_model_config
from shared.checkpoint.rope_scaling import RopeScaling
from shared.engine.errors import EngineError
from shared.engine.rotary import RotaryTable, rope_frequencies

LLAMA3 = RopeScaling(
    "llama3", factor=8.0, original_positions=128, low_freq_factor=1.0, high_freq_factor=4.0
)


@pytest.fixture
def config() -> ModelConfig:
    return load_model_config(locate("dummy:tiny"))


def test_divisors_that_a_checkpoint_stores_are_those_of_its_formula(config: ModelConfig) -> None:
    plain, _ = rope_frequencies(config)
    scaled, _ = rope_frequencies(replace(config, rope_scaling=LLAMA3))
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8
    stored = RopeScaling("divisors", divisors=tuple((plain / scaled).tolist()))
    again, _ = rope_frequencies(replace(config, rope_scaling=stored))
    assert torch.allclose(again, scaled, rtol=1e-6)


def test_divisors_of_another_head_size_are_refused(config: ModelConfig) -> None:
    with pytest.raises(EngineError, match=r"rope_freqs\.weight: 3 values for 8"):
        rope_frequencies(
            replace(config, rope_scaling=RopeScaling("divisors", divisors=(1.0, 1.0, 1.0)))
        )


def test_yarn_scales_what_it_turns(config: ModelConfig) -> None:
    yarn = RopeScaling("yarn", factor=4.0, original_positions=256)
    table = RotaryTable(replace(config, rope_scaling=yarn), torch.float32, torch.device("cpu"))
    cos, sin = table.at(torch.tensor([100]))
    expected = 0.1 * torch.log(torch.tensor(4.0)) + 1
    assert torch.allclose((cos**2 + sin**2).sqrt(), expected.expand_as(cos))
    given = replace(yarn, attention_factor=1.0)
    assert rope_frequencies(replace(config, rope_scaling=given))[1] == 1.0
    ratio = rope_frequencies(
        replace(config, rope_scaling=replace(yarn, mscale=0.5, mscale_all_dim=1.0))
    )[1]
    assert ratio < 1.0
