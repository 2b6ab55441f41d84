"""Blocks, chunks and what of a prompt may be shared."""

import pytest

from shared.worker.grid import Chunk, Grid, layer_groups

GRID = Grid(block_tokens=128, grid_tokens=256)


def test_a_hit_is_rounded_down_to_the_grid() -> None:
    assert GRID.hit_blocks(held_blocks=3, num_tokens=2000) == 2
    assert GRID.hit_blocks(held_blocks=1, num_tokens=2000) == 0


@pytest.mark.parametrize(("num_tokens", "blocks"), [(1, 0), (256, 0), (257, 2), (512, 2), (513, 4)])
def test_the_last_chunk_is_always_computed(num_tokens: int, blocks: int) -> None:
    assert GRID.max_hit_blocks(num_tokens) == blocks
    assert GRID.hit_blocks(held_blocks=100, num_tokens=num_tokens) == blocks


def test_only_blocks_of_whole_chunks_are_shared() -> None:
    assert GRID.shareable_blocks(255) == 0
    assert GRID.shareable_blocks(400) == 2  # block 2 is full, its chunk is not
    assert GRID.shareable_blocks(512) == 4


def test_chunks_cover_the_rest_of_the_prompt() -> None:
    assert list(GRID.chunks(256, 700)) == [Chunk(256, 512), Chunk(512, 700)]
    assert GRID.blocks_of(Chunk(512, 700)) == range(4, 6)
    assert [GRID.valid_tokens(block, 700) for block in (4, 5)] == [128, 60]
    with pytest.raises(ValueError, match="not on the grid"):
        list(GRID.chunks(128, 700))


def test_a_block_must_divide_the_grid() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        Grid(block_tokens=100, grid_tokens=256)


@pytest.mark.parametrize("num_layers", [1, 2, 5, 6, 7, 30, 32])
def test_layer_groups_cover_all_layers_in_order(num_layers: int) -> None:
    groups = layer_groups(num_layers, 6)
    assert len(groups) == min(num_layers, 6)
    covered = [layer for first, end in groups.values() for layer in range(first, end)]
    assert covered == list(range(num_layers))
    assert all(last == end - 1 for last, (_, end) in groups.items())
