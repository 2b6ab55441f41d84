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
    while low_mask != last and low + step < count - 1:
        high = low + step
        mask = holders_at(high) & low_mask | last
        if mask != low_mask:
            _bisect(holders_at, low, low_mask, high, mask, found)
        low, low_mask, step = high, mask, JUMP_GROWTH * step
    if low_mask != last:
        _bisect(holders_at, low, low_mask, count - 1, last, found)
    return found


def _bisect(
    holders_at: Callable[[int], int],
    low: int,
    low_mask: int,
    high: int,
    high_mask: int,
    found: list[tuple[int, int]],
) -> None:
    """Depths of the holders that have block `low` and not `high`."""
    ending = low_mask & ~high_mask
    if not ending:
        return
    if high - low == 1:
        found.append((high, ending))
        return
    middle = (low + high) // 2
    # Closed: who has the middle has the low end too; who has the high end has the middle.
    mask = holders_at(middle) & low_mask | high_mask
    _bisect(holders_at, low, low_mask, middle, mask, found)
    _bisect(holders_at, middle, mask, high, high_mask, found)
