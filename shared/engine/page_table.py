"""Pages of a device cache and who has them. Holds no tensors."""

import heapq
from collections.abc import Iterable, Iterator, Sequence

from shared.engine.errors import EngineError


class PageTable:
    """Owns the free pages; gives out the lowest, so that a sequence's pages mostly lie together."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._free = list(range(num_pages))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_tokens: int) -> list[int]:
        count = -(-num_tokens // self.page_tokens)
        if count > len(self._free):
            raise EngineError(
                f"{num_tokens} tokens need {count} pages of the device cache, {len(self._free)} "
                "are free"
            )
        return [heapq.heappop(self._free) for _ in range(count)]

    def give_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            heapq.heappush(self._free, page)


def token_runs(
    pages: Sequence[int], page_tokens: int, start: int, num_tokens: int
) -> Iterator[tuple[int, int, int]]:
    """(offset, place, count): tokens `start + offset`... lie at `place`... of the cache's tokens.

    Neighbouring pages make one run.
    """
    offset = 0
    while offset < num_tokens:
        index, within = divmod(start + offset, page_tokens)
        place = pages[index] * page_tokens + within
        count = page_tokens - within
        while offset + count < num_tokens and pages[index + 1] == pages[index] + 1:
            index += 1
            count += page_tokens
        count = min(count, num_tokens - offset)
        yield offset, place, count
        offset += count
