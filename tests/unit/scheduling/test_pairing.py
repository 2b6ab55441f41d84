"""Which pair: KV that need not move against batches that are held up."""

from collections import Counter

import pytest

from shared.scheduling.effects import AnswerPlaced
from shared.scheduling.events import BillFinished
from shared.scheduling.vocabulary import InstanceView
from tests.support.placing import MODEL, Driven, instance, match, request

BIG_BLOCK_BYTES = 64 << 20
"""So large that moving a prompt's KV takes seconds."""


def placed(driven: Driven, *args: object, **fields: object) -> tuple[str, str]:
    answer = driven.place(*args, **fields)  # type: ignore[arg-type]
    assert isinstance(answer, AnswerPlaced)
    return answer.decision.winner.prefill.id, answer.decision.decode.id


def cluster(batch: int) -> list[InstanceView]:
    """A prefill instance on its own node, and one that also decodes, with a batch."""
    return [
        instance("prefill", "p", "n1", block_bytes=BIG_BLOCK_BYTES),
        instance("prefill", "both", "n2", block_bytes=BIG_BLOCK_BYTES),
        instance("decode", "both", "n2", incarnation="both-d", running=batch),
    ]


@pytest.mark.parametrize(
    ("batch", "num_tokens", "at_hand_blocks", "expected"),
    [
        (0, 1_000, 0, "both"),  # nobody is held up
        (8, 1_000, 60, "both"),  # a short suffix: less than moving the KV
        (8, 4_000, 0, "p"),  # a long one holds eight answers up
    ],
)
def test_prefill_runs_where_decode_is_when_that_is_cheaper_than_to_move_the_kv(
    batch: int, num_tokens: int, at_hand_blocks: int, expected: str
) -> None:
    driven = Driven(cluster(batch))
    matches = [match(node, at_hand_blocks) for node in ("n1", "n2") if at_hand_blocks]
    prefill, decode = placed(driven, request(num_tokens), *matches)
    assert (prefill, decode) == (expected, "both")


def test_one_that_only_decodes_on_the_node_holds_nobody_up() -> None:
    views = [
        instance("prefill", "far", "n1", block_bytes=BIG_BLOCK_BYTES),
        instance("prefill", "near", "n2", block_bytes=BIG_BLOCK_BYTES),
        instance("decode", "d", "n2", running=50),
    ]
    assert placed(Driven(views), request(4_000))[0] == "near"


def test_of_equal_decode_instances_the_one_on_the_node_is_taken() -> None:
    views = [instance("prefill", "p", "n3")]
    views += [instance("decode", f"d{n}", f"n{n}") for n in range(1, 5)]
    chosen = Counter(placed(Driven(views, seed=seed), request(1_000))[1] for seed in range(16))
    assert chosen == {"d3": 16}


def test_a_busier_one_on_the_node_is_left_when_its_steps_cost_more_than_the_move() -> None:
    views = [
        instance("prefill", "p", "n1"),
        instance("decode", "near", "n1", running=16, context_in_batch_tokens=32_000),
        instance("decode", "far", "n2"),
    ]
    assert placed(Driven(views), request(1_000))[1] == "far"


def test_short_answers_stay_longer_with_the_busier_one() -> None:
    """The same two instances: what a step costs more counts for each token of the answer."""

    def choice(answer_tokens: int) -> str:
        views = [
            instance("prefill", "p", "n1", block_bytes=BIG_BLOCK_BYTES),
            instance("decode", "near", "n1", running=2),
            instance("decode", "far", "n2"),
        ]
        driven = Driven(views)
        for _ in range(400):
            driven.feed(BillFinished(MODEL, 1_000, 0, 1.0, output_tokens=answer_tokens))
        return placed(driven, request(1_000, max_tokens=2_000))[1]

    assert (choice(2), choice(1_000)) == ("near", "far")
