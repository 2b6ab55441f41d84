"""What a node that leaves hands to others: which chains, in which order, up to how many bytes."""

from collections.abc import Callable, Iterable, Sequence

from shared.kv.ids import BlockKey


def chains_to_hand_over(
    recent: Iterable[BlockKey],
    path: Callable[[BlockKey], Sequence[BlockKey]],
    is_proven: Callable[[BlockKey], bool],
    max_blocks: int,
) -> list[list[BlockKey]]:
    """Chains worth keeping, the proven ones first, each block counted once.

    `recent` are keys, the last used first; a chain that another one goes through is not named.
    """
    keys = list(recent)
    proven = [key for key in keys if is_proven(key)]
    others = [key for key in keys if not is_proven(key)]
    covered: set[BlockKey] = set()
    chains: list[list[BlockKey]] = []
    for key in [*proven, *others]:
        if key in covered:
            continue
        chain = list(path(key))
        num_new = sum(each not in covered for each in chain)
        if not chain or len(covered) + num_new > max_blocks:
            continue
        covered.update(chain)
        chains.append(chain)
    inside = {key for chain in chains for key in chain[:-1]}
    return [chain for chain in chains if chain[-1] not in inside]
