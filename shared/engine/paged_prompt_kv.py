"""The K and V of prompts in pages of a device, loaded from the pool and stored in it by layers.

A layer's prefix is loaded while the layers before it compute, and its chunk is stored while the
layers after it do. Bytes pass through staging buffers; only the host's thread writes in the pool.
"""

from collections.abc import Sequence

import torch

from shared.checkpoint.model_config import ModelConfig
from shared.engine.attention_plain import CausalMask, attend_causal
from shared.engine.copy_streams import CopyStreams, Ticket
from shared.engine.device_blocks import BlockUse, DeviceBlocks
from shared.engine.kv_layout import KvLayout
from shared.engine.prompt_kv import ChunkRun, write_blocks
from shared.engine.staging import LayerStores, StagingRing

_LOADED_AHEAD = 2  # layers
_LOAD_BUFFERS = 16  # one block of one layer each
_STORE_BUFFERS = 4  # one chunk of one layer each


class PagedPromptKv:
    """The device's counterpart of PoolPromptKv; runs on a CPU as well, for tests."""

    def __init__(
        self,
        config: ModelConfig,
        layout: KvLayout,
        pool: torch.Tensor,
        streams: CopyStreams,
        *,
        max_rows: int,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        """Room for `num_tokens` on the device, and at least for one whole prompt."""
        self._layout = layout
        self._pool = pool
        self._config = config
        self._streams = streams
        self._device = device
        block = (layout.block_tokens, layout.num_kv_heads, layout.head_dim)
        num_pages = -(-max(num_tokens, config.max_positions) // layout.block_tokens)
        shape = (layout.num_layers, num_pages, 2, *block)
        self._pages = torch.empty(shape, dtype=layout.torch_dtype, device=device)
        self._blocks = DeviceBlocks(num_pages)
        self._loads = StagingRing(streams, _LOAD_BUFFERS, (2, *block), layout.torch_dtype)
        chunk = (2, max_rows, *block[1:])
        self._stored = StagingRing(streams, _STORE_BUFFERS, chunk, layout.torch_dtype)
        self._stores = LayerStores(_STORE_BUFFERS)
        self._masks = {
            window: CausalMask(max_rows, config.max_positions, layout.torch_dtype, window, device)
            for window in {config.window_of(layer) for layer in range(layout.num_layers)}
        }
        self._run = ChunkRun(0, 0, (), ())
        self._of_prefix: list[int] = []
        self._of_chunk: list[int] = []
        self._missing: list[tuple[int, int]] = []  # (slot, page) of blocks to be loaded
        self._loaded: list[Ticket] = []  # by layer
        self._arrived: list[int] = []
        self._table = torch.empty(0, dtype=torch.int64)
        self._mask_of: dict[int | None, torch.Tensor] = {}  # of this chunk, by window

    @property
    def num_kept_blocks(self) -> int:
        return self._blocks.num_kept

    def begin(self, run: ChunkRun) -> None:
        self._run, self._arrived, self._loaded, self._mask_of = run, [], [], {}
        self._missing, self._of_prefix, self._of_chunk = [], [], []
        found = [None if use is None else self._blocks.find(use) for use in _uses(run)]
        # What is left of a chunk that was begun before is not trusted.
        num_prefix = len(run.prefix_slots)
        self._blocks.give_back([page for page in found[num_prefix:] if page is not None])
        on_device = found[:num_prefix]
        try:
            claimed = self._blocks.claim(on_device.count(None) + len(run.chunk_slots))
        except BaseException:
            self._blocks.give_back([page for page in on_device if page is not None])
            raise
        for slot, page in zip(run.prefix_slots, on_device, strict=True):
            if page is None:
                page = claimed.pop()
                self._missing.append((slot, page))
            self._of_prefix.append(page)
        self._of_chunk = claimed
        self._table = torch.tensor(
            self._of_prefix + self._of_chunk, dtype=torch.int64, device=self._device
        )
        self._load_until(_LOADED_AHEAD)

    def put(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        write_blocks(self._pages[layer], self._of_chunk, key, value)
        self._arrived += self._stores.make_room()
        staged, slots = self._stored.take(), self._run.chunk_slots
        keys, values = staged[0, : len(key)], staged[1, : len(value)]
        ticket = self._streams.to_host([(keys, key), (values, value)])
        self._stored.used_by(ticket)
        pool = self._pool[:, layer]
        self._stores.add(layer, ticket, lambda: write_blocks(pool, slots, keys, values))

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        run = self._run
        if self._missing:
            self._loaded[layer].wait_compute()
        pages = self._pages[layer]
        keys, values = (
            pages[:, part].index_select(0, self._table).flatten(0, 1)[: run.end] for part in (0, 1)
        )
        window = self._config.window_of(layer)
        if window not in self._mask_of:
            # Contiguous, as CUDA's fused kernels want it; one for all layers.
            mask = self._masks[window].at(len(query), run.start, run.end).contiguous()
            self._mask_of[window] = mask
        attended = attend_causal(query, keys, values, self._mask_of[window])
        self._load_until(layer + 1 + _LOADED_AHEAD)
        return attended

    def arrived(self, *, wait: bool = False) -> list[int]:
        self._arrived += self._stores.drain() if wait else self._stores.arrived()
        arrived, self._arrived = self._arrived, []
        return arrived

    def end(self, *, is_whole: bool) -> None:
        self._stores.drop()
        for ticket in self._loaded:
            ticket.wait_host()
        pages = self._of_prefix + self._of_chunk
        loaded = {page for _, page in self._missing}
        full = self._run.end // self._layout.block_tokens
        for index, (use, page) in enumerate(zip(_uses(self._run), pages, strict=True)):
            is_there = is_whole or (index < len(self._of_prefix) and page not in loaded)
            if use is not None and is_there and index < full:
                self._blocks.keep(use, page)
            else:
                self._blocks.give_back([page])
        self._run = ChunkRun(0, 0, (), ())
        self._of_prefix, self._of_chunk, self._missing, self._loaded = [], [], [], []

    def _load_until(self, end_layer: int) -> None:
        """Order the missing blocks of further layers, up to this one."""
        if not self._missing:
            return
        for layer in range(len(self._loaded), min(end_layer, self._layout.num_layers)):
            for slot, page in self._missing:
                staged = self._loads.take()
                staged.copy_(self._pool[slot, layer])
                ticket = self._streams.to_device([(self._pages[layer, page], staged)])
                self._loads.used_by(ticket)
            self._loaded.append(ticket)  # of one stream: the last is done when all are


def _uses(run: ChunkRun) -> Sequence[BlockUse | None]:
    slots = [*run.prefix_slots, *run.chunk_slots]
    if not run.generations:
        return [None] * len(slots)
    return [BlockUse(*use) for use in zip(slots, run.generations, strict=True)]
