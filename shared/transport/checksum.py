"""xxh3-64 over the valid bytes of a block. Pure functions over bytes in memory; run in threads."""

import numpy as np
import numpy.typing as npt
import xxhash

from shared.messages.transfer import KvGeometry
from shared.transport.slices import valid_ranges


def block_checksum(block: npt.NDArray[np.uint8], geometry: KvGeometry, valid_tokens: int) -> int:
    """Checksum of the first `valid_tokens` tokens of each plane, layer by layer; never 0.

    0 means "not computed" on the wire. xxhash gives up the GIL for buffers of this size.
    """
    if valid_tokens == geometry.block_tokens:
        return int(xxhash.xxh3_64_intdigest(block.data)) or 1
    state = xxhash.xxh3_64()
    for offset, num_bytes in valid_ranges(geometry, valid_tokens, 0, geometry.num_layers):
        state.update(block[offset : offset + num_bytes].data)
    return int(state.intdigest()) or 1
