"""Only the valid tokens of a block count."""

import numpy as np
import pytest
import xxhash

from shared.messages.transfer import KvGeometry
from shared.transport.checksum import block_checksum
from shared.transport.slices import valid_ranges

GEOMETRY = KvGeometry(num_layers=3, block_tokens=8, token_bytes=4)


def block() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, GEOMETRY.block_bytes, dtype=np.uint8)


def test_a_full_block_is_hashed_as_one_run() -> None:
    data = block()
    assert block_checksum(data, GEOMETRY, 8) == xxhash.xxh3_64_intdigest(data.tobytes())


@pytest.mark.parametrize("valid_tokens", [1, 5, 7])
def test_the_checksum_is_over_the_valid_tokens_of_each_plane_in_order(valid_tokens: int) -> None:
    data = block()
    planes = data.reshape(3, 2, 8, 4)
    valid = np.ascontiguousarray(planes[:, :, :valid_tokens]).tobytes()
    assert block_checksum(data, GEOMETRY, valid_tokens) == xxhash.xxh3_64_intdigest(valid)
    before = block_checksum(data, GEOMETRY, valid_tokens)
    planes[:, :, valid_tokens:] ^= 255
    assert block_checksum(data, GEOMETRY, valid_tokens) == before
    planes[2, 1, valid_tokens - 1, 3] ^= 1
    assert block_checksum(data, GEOMETRY, valid_tokens) != before


def test_ranges_of_layers_cover_their_valid_tokens() -> None:
    assert valid_ranges(GEOMETRY, 8, 0, 3) == [(0, 192)]
    assert valid_ranges(GEOMETRY, 8, 1, 2) == [(64, 64)]
    assert valid_ranges(GEOMETRY, 3, 1, 2) == [(64, 12), (96, 12)]


@pytest.mark.parametrize(
    ("valid_tokens", "first", "end", "field"),
    [
        (0, 0, 1, "valid_tokens"),
        (9, 0, 1, "valid_tokens"),
        (1, 1, 1, "layers"),
        (1, 0, 4, "layers"),
    ],
)
def test_ranges_outside_the_block_are_refused(
    valid_tokens: int, first: int, end: int, field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        valid_ranges(GEOMETRY, valid_tokens, first, end)
