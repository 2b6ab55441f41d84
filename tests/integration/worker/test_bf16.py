"""bfloat16 through the workers: hits and resumed answers are those of a cold run."""

import numpy as np
import pytest

from shared.messages.common import FetchSource, Sampling
from tests.support.reference_answers import BFLOAT16, Tokens, prompt, reference_answer
from tests.support.two_nodes import TwoNodes

pytestmark = pytest.mark.integration
SAMPLED = Sampling(max_tokens=12, temperature=0.9, seed=4, ignore_eos=True)
GRID_TOKENS = 512


def expected_of(tokens: Tokens) -> list[int]:
    return reference_answer(tokens, SAMPLED, BFLOAT16)


async def test_every_kind_of_hit_gives_the_tokens_of_the_cold_run(bf16_nodes: TwoNodes) -> None:
    nodes, submit = bf16_nodes, bf16_nodes.bench.submit
    tokens = prompt(1100)
    expected = expected_of(tokens)
    cold = await (await submit(tokens, nodes.prefill, nodes.decode, sampling=SAMPLED)).done()
    assert (cold.error, cold.text, cold.reuse.cached_tokens) == (None, expected, 0)
    local = await (await submit(tokens, nodes.prefill, nodes.far_decode, sampling=SAMPLED)).done()
    assert (local.text, local.reuse.local_tokens) == (expected, 2 * GRID_TOKENS)
    other = np.concatenate([tokens[:GRID_TOKENS], prompt(700, seed=1)])
    source = FetchSource(node=nodes.a.ref, num_blocks=1)
    remote = await (
        await submit(other, nodes.far_prefill, nodes.decode, source=source, sampling=SAMPLED)
    ).done()
    assert (remote.text, remote.reuse.cached_tokens) == (expected_of(other), GRID_TOKENS)
    await nodes.nothing_is_held()


@pytest.mark.parametrize("num_tokens", [5, GRID_TOKENS + 88])
async def test_killed_at_every_position_an_answer_goes_on_the_same(
    bf16_nodes: TwoNodes, num_tokens: int
) -> None:
    """Prefill on the grid, then the tokens that were given through decode, another one each time,
    in company of an answer that runs from its start."""
    nodes, submit = bf16_nodes, bf16_nodes.bench.submit
    tokens = prompt(num_tokens, seed=num_tokens)
    expected = expected_of(tokens)
    for num_given in range(len(expected)):
        prefills, decodes = (nodes.prefill, nodes.far_prefill), (nodes.decode, nodes.far_decode)
        decode = decodes[num_given // 2 % 2]
        company = await submit(prompt(40, seed=num_given), nodes.prefill, decode, sampling=SAMPLED)
        resumed = await submit(
            tokens,
            prefills[num_given % 2],
            decode,
            sampling=SAMPLED,
            given=expected[:num_given],
        )
        await resumed.done()
        assert resumed.error is None
        assert resumed.tokens == dict(enumerate(expected[num_given:], start=num_given))
        assert (await company.done()).text == expected_of(prompt(40, seed=num_given))
    await nodes.nothing_is_held()
