"""How K and V of a block lie in memory, and the pool seen as a tensor. Owns no memory."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from shared.engine.errors import EngineError

DtypeName = Literal["float32", "bfloat16"]
TORCH_DTYPES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
# Prefill starts its chunks at multiples of this many tokens, so that a hit computes in the
# very same shapes as a cold run and gives the same bits.
GRID_TOKENS: dict[DtypeName, int] = {"float32": 256, "bfloat16": 512}
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A block is contiguous: [layer][K, V][token][kv_head][head_dim]."""

    num_layers: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    dtype: DtypeName

    @property
    def torch_dtype(self) -> torch.dtype:
        return TORCH_DTYPES[self.dtype]

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's K and V in a block: the smallest slice that is streamed."""
        values = 2 * self.block_tokens * self.num_kv_heads * self.head_dim
        return values * self.torch_dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_tokens


def view_pool(buffer: memoryview, layout: KvLayout, num_slots: int) -> torch.Tensor:
    """The first `num_slots` blocks of `buffer` as [slot, layer, 2, token, kv_head, head_dim].

    Shares the memory: the caller keeps it mapped while the tensor lives.
    """
    needed_bytes = num_slots * layout.block_bytes
    if buffer.nbytes < needed_bytes:
        raise EngineError(
            f"the pool has {buffer.nbytes} bytes, {num_slots} slots of {layout.block_bytes} need "
            f"{needed_bytes}"
        )
    if buffer.readonly:
        raise EngineError("the pool is mapped read-only; attach it for writing")
    shape = (
        num_slots,
        layout.num_layers,
        2,
        layout.block_tokens,
        layout.num_kv_heads,
        layout.head_dim,
    )
    flat = torch.frombuffer(buffer, dtype=layout.torch_dtype, count=math.prod(shape))
    return flat.view(shape)
