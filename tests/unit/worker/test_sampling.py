"""When an answer is finished."""

import pytest

from shared.messages.common import Sampling
from shared.worker.sampling import finish_reason

EOS = (2, 7)


@pytest.mark.parametrize(
    ("token", "num_given", "ignore_eos", "reason"),
    [
        (5, 1, False, None),
        (7, 1, False, "stop"),
        (7, 1, True, None),
        (5, 10, False, "length"),
        (2, 10, False, "stop"),
        (5, 4, False, None),
        (5, 5, True, "length"),  # position 105 is the end of the context
    ],
)
def test_an_answer_ends_by_eos_by_length_or_by_the_context(
    token: int, num_given: int, ignore_eos: bool, reason: str | None
) -> None:
    sampling = Sampling(max_tokens=10, ignore_eos=ignore_eos)
    context = 105 if num_given in (4, 5) else 1000
    found = finish_reason(
        sampling,
        EOS,
        token=token,
        num_given=num_given,
        num_tokens=100,
        context_tokens=context,
    )
    assert found == reason
