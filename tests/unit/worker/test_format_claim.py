import asyncio
from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from shared.kv.kv_format import KvFormat
from shared.messages.index import ClaimReply
from shared.runtime.bus import Bus
from shared.runtime.errors import ServiceError
from shared.worker.format_claim import claim_format

MINE = KvFormat(
    weights="w",
    architecture="LlamaForCausalLM",
    tokenizer="t",
    mode="exact",
    dtype="bfloat16",
    linear_mode="avx2-panels",
    grid_tokens=512,
    block_tokens=512,
    layout_version=1,
    engine_revision=1,
    torch_version="2.13.0",
    device="cpu, RoPE 00",
)


class Refusing:
    """A bus whose cache-index keeps another format."""

    def __init__(self, current: dict[str, Any]) -> None:
        self._current = current

    async def request(self, *_: Any, **__: Any) -> ClaimReply:
        return ClaimReply(is_accepted=False, current=self._current)


def refusal_of(current: dict[str, Any]) -> str:
    with pytest.raises(ServiceError) as caught:
        asyncio.run(claim_format(cast("Bus", Refusing(current)), "m", "prefill-1", MINE))
    return caught.value.message


def test_other_kernels_are_named_with_what_to_set() -> None:
    told = refusal_of(replace(MINE, linear_mode="amx-panels").to_dict())
    assert "linear_mode: 'avx2-panels' != 'amx-panels'" in told
    assert "MOONPOOL_KERNELS" in told


@pytest.mark.parametrize(
    ("dtype", "linear_mode"),
    [("float32", "panels"), ("bfloat16", "plain"), ("bfloat16", "cublas"), ("bfloat16", "timed")],
)
def test_what_no_choice_of_kernels_mends_has_no_word_of_them(
    dtype: Literal["float32", "bfloat16"], linear_mode: str
) -> None:
    told = refusal_of(replace(MINE, dtype=dtype, linear_mode=linear_mode).to_dict())
    assert f"linear_mode: 'avx2-panels' != '{linear_mode}'" in told
    assert "MOONPOOL_KERNELS" not in told


def test_a_format_of_another_version_is_told_as_such() -> None:
    assert "theirs is not readable here" in refusal_of({"weights": "w"})
