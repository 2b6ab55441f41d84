"""What is worth a place in a slower tier, and what a node that leaves hands over."""

from shared.kv.ids import BlockKey
from shared.kv.leaving import chains_to_hand_over
from shared.kv.second_use import MIN_PRUNED, SecondUse


def keys(text: str) -> list[BlockKey]:
    return [BlockKey(text[: end + 1].encode().rjust(16, b".")) for end in range(len(text))]


def test_blocks_that_two_requests_used_are_proven() -> None:
    uses = SecondUse(lambda _: True)
    assert uses.used("r1", keys("abcd")) == 0
    assert uses.used("r1", keys("abcd")) == 0
    assert uses.used("r2", keys("abx")) == 2
    assert uses.used("r1", keys("abcd")) == 2
    assert uses.used("r3", keys("abcd")) == 4
    assert uses.is_proven(keys("abcd")[-1])
    assert not uses.is_proven(keys("abx")[-1])
    assert not uses.is_proven(keys("zz")[-1])


def test_what_is_not_readable_any_more_is_forgotten() -> None:
    readable: set[BlockKey] = set(keys("a" * 16)[:5])
    uses = SecondUse(readable.__contains__)
    for number in range(MIN_PRUNED + 1):
        uses.used("r", [BlockKey(number.to_bytes(16, "big"))])
    assert len(uses) == 0


def test_the_last_used_comes_first() -> None:
    uses = SecondUse(lambda _: True)
    uses.used("r1", keys("ab"))
    uses.used("r2", keys("xy"))
    uses.used("r3", keys("a"))
    assert list(uses.recent()) == [keys("a")[0], keys("xy")[1], keys("xy")[0], keys("ab")[1]]


def test_a_leaving_node_hands_over_proven_chains_first_and_within_its_bytes() -> None:
    chains = {chain[-1]: chain for chain in (keys("abc"), keys("ab"), keys("x"), keys("mno"))}
    path = {**chains, **{key: keys("abc")[: at + 1] for at, key in enumerate(keys("abc"))}}
    recent = [keys("mno")[-1], keys("x")[-1], keys("abc")[2], keys("ab")[1]]

    def handed(max_blocks: int) -> list[list[BlockKey]]:
        return chains_to_hand_over(
            recent, lambda key: path.get(key, []), {keys("ab")[1]}.__contains__, max_blocks
        )

    assert handed(100) == [keys("mno"), keys("x"), keys("abc")]
    assert handed(3) == [keys("ab"), keys("x")]
    assert handed(2) == [keys("ab")]
    assert handed(0) == []
