"""Which bytes of a block are meant: layers and valid tokens as byte ranges. Touches no memory."""

from shared.messages.transfer import KvGeometry


def valid_ranges(
    geometry: KvGeometry, valid_tokens: int, first_layer: int, end_layer: int
) -> list[tuple[int, int]]:
    """(offset, bytes) of the valid tokens of layers [first_layer, end_layer), joined where full."""
    if not 0 < valid_tokens <= geometry.block_tokens:
        raise ValueError(f"valid_tokens: must be 1 to {geometry.block_tokens}, is {valid_tokens}")
    if not 0 <= first_layer < end_layer <= geometry.num_layers:
        raise ValueError(
            f"end_layer: layers {first_layer} to {end_layer} are not within "
            f"0 to {geometry.num_layers}"
        )
    plane_bytes = geometry.plane_bytes
    first_plane, end_plane = 2 * first_layer, 2 * end_layer
    if valid_tokens == geometry.block_tokens:
        return [(first_plane * plane_bytes, (end_plane - first_plane) * plane_bytes)]
    num_bytes = valid_tokens * geometry.token_bytes
    return [(plane * plane_bytes, num_bytes) for plane in range(first_plane, end_plane)]
