"""Attention by torch: the same bits for any number of threads, however few queries there are."""

from collections.abc import Callable, Iterator

import pytest
import torch

from shared.engine.attention_plain import CausalMask, attend_causal, attend_one

HEAD_DIM = 64


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def is_equal_on_any_threads(attend: Callable[[], torch.Tensor]) -> bool:
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(attend())
    return all(torch.equal(results[0], result) for result in results)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("num_keys", [257, 1025])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (9, 3), (8, 2), (14, 2)])
def test_a_decoded_token_has_the_same_bits_on_any_number_of_threads(
    heads: int, kv_heads: int, num_keys: int
) -> None:
    query = random(heads, HEAD_DIM)
    keys, values = random(2, num_keys, kv_heads, HEAD_DIM)
    assert is_equal_on_any_threads(lambda: attend_one(query, keys, values))


@pytest.mark.parametrize("num_past", [0, 256, 1024])
@pytest.mark.parametrize("num_rows", [2, 3, 4, 37])
def test_a_chunk_has_the_same_bits_on_any_number_of_threads(num_rows: int, num_past: int) -> None:
    num_keys = num_past + num_rows
    query = random(num_rows, 9, HEAD_DIM)
    keys, values = random(2, num_keys, 3, HEAD_DIM)
    mask = CausalMask(256, 2048, torch.float32).at(num_rows, num_past, num_keys)
    assert is_equal_on_any_threads(lambda: attend_causal(query, keys, values, mask))


def test_what_is_padded_changes_no_result() -> None:
    keys, values = random(2, 50, 3, HEAD_DIM)
    query = random(5, 9, HEAD_DIM)
    mask = CausalMask(8, 64, torch.float32)
    whole = attend_causal(query, keys, values, mask.at(5, 45, 50))
    last = attend_causal(query[-1:], keys, values, mask.at(1, 49, 50))
    one = attend_one(query[-1], keys, values)
    torch.testing.assert_close(last[0], whole[-1])
    torch.testing.assert_close(one, whole[-1])
