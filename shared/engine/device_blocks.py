"""Which blocks of the pool are on the device too, and which page each has. Holds no tensors."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from shared.engine.errors import EngineError


class BlockUse(NamedTuple):
    """What a slot holds from its allocation to its next: never two contents."""

    slot: int
    generation: int


class DeviceBlocks:
    """Owns the pages; those of no running chunk are kept until their room is needed."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._pages: OrderedDict[BlockUse, int] = OrderedDict()  # least recently used first

    @property
    def num_kept(self) -> int:
        return len(self._pages)

    def find(self, use: BlockUse) -> int | None:
        """Its page, which is out of reach of claim() until it is kept again."""
        return self._pages.pop(use, None)

    def claim(self, count: int) -> list[int]:
        """Pages with nothing in them; what was used longest ago goes."""
        if count > len(self._free) + len(self._pages):
            raise EngineError(
                f"the device cache has {self._num_pages} blocks, too few for this prompt; raise "
                "MOONPOOL_DEVICE_TOKENS"
            )
        while len(self._free) < count:
            self._free.append(self._pages.popitem(last=False)[1])
        return [self._free.pop() for _ in range(count)]

    def keep(self, use: BlockUse, page: int) -> None:
        """The page holds all of this block now."""
        older = self._pages.pop(use, None)
        if older is not None:
            self._free.append(older)
        self._pages[use] = page

    def give_back(self, pages: Sequence[int]) -> None:
        """They hold nothing of use."""
        self._free.extend(pages)
