"""How deep each holder goes along a chain, from few looks at it. Sees sets of holders as ints.

It takes for granted that holders are prefix-closed: who has a block has all before it.
"""

from collections.abc import Callable

FIRST_JUMP, JUMP_GROWTH = 1, 4


def find_depths(holders_at: Callable[[int], int], count: int) -> list[tuple[int, int]]:
    """(depth, those that go exactly so deep) for everybody who has block 0 of `count`."""
    first = holders_at(0)
    if not first:
        return []
    found: list[tuple[int, int]] = []
    last = holders_at(count - 1) & first
    if last:
        found.append((count, last))
    # Jumps from the start: most prefixes that end at all end early.
    low, low_mask, step = 0, first, FIRST_JUMP
    while low_mask != last:
        high = min(low + step, count - 1)
        mask = last if high == count - 1 else holders_at(high) & low_mask | last
        while mask != low_mask:
            # Somebody ends between: the first who does is found, then the next.
            low, following = _next_end(holders_at, low, low_mask, high, mask)
            found.append((low, low_mask & ~following))
            low_mask = following
        low, step = high, JUMP_GROWTH * step
    return found


def _next_end(
    holders_at: Callable[[int], int], low: int, low_mask: int, high: int, high_mask: int
) -> tuple[int, int]:
    """The first block that not all of `low_mask` have, and who has it; `high` is one.

    Closed: who has a block has those before it, and who has `high` has all between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        mask = holders_at(middle) & low_mask | high_mask
        if mask == low_mask:
            low = middle
        else:
            high, high_mask = middle, mask
    return high, high_mask
