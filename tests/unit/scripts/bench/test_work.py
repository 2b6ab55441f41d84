import pytest

from scripts.bench.work import decode_step_bytes, layer_params, linear_shapes, prefill_flops
from shared.checkpoint.locate import locate
from shared.checkpoint.model_config import load_model_config

# 4 query and 2 KV heads of 16, hidden 64, MLP 128, 2 layers, 512 tokens of vocabulary.
CONFIG = load_model_config(locate("dummy:tiny"))
LAYER_PARAMS = 64 * 128 + 64 * 64 + 64 * 256 + 128 * 64


def test_the_matrix_products_of_a_layer() -> None:
    assert linear_shapes(CONFIG) == [(64, 128), (64, 64), (64, 256), (128, 64)]
    assert layer_params(CONFIG) == LAYER_PARAMS


def test_a_prefill_is_linears_causal_attention_and_one_row_of_the_head() -> None:
    linears = 2 * 2 * LAYER_PARAMS * 100
    attention = 2 * (4 * 64 * 100 * 100 / 2)
    assert prefill_flops(CONFIG, 100) == pytest.approx(linears + attention + 2 * 64 * 512)


def test_a_step_reads_all_weights_once_and_the_kv_of_every_sequence() -> None:
    weights = 2 * LAYER_PARAMS + 64 * 512
    kv = 2 * 2 * 32 * 1000 * 8
    got = decode_step_bytes(CONFIG, context=1000, batch=8, bytes_per_value=2)
    assert got == (weights + kv) * 2
