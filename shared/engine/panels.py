"""Weights in the order in which the kernels read them: panels of 64 outputs. Plain memory, so a
mapped file of panels serves all processes of a host."""

import torch

PANEL = 64


def panel_shape(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """bfloat16 interleaves pairs of neighbouring inputs, as its products take them."""
    num_panels = -(-outputs // PANEL)
    if dtype == torch.bfloat16:
        return (num_panels, inputs // 2, PANEL, 2)
    return (num_panels, inputs, PANEL)


def to_panels(weight: torch.Tensor) -> torch.Tensor:
    """From [outputs, inputs]; outputs are filled up with zeros to whole panels."""
    outputs, inputs = weight.shape
    padded = torch.zeros((-(-outputs // PANEL) * PANEL, inputs), dtype=weight.dtype)
    padded[:outputs] = weight
    if weight.dtype == torch.bfloat16:
        return padded.view(-1, PANEL, inputs // 2, 2).transpose(1, 2).contiguous()
    return padded.view(-1, PANEL, inputs).transpose(1, 2).contiguous()
