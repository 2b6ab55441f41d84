"""Computes the KV of prompt chunks straight into pool slots. Keeps no state between chunks."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.engine.kv_layout import KvLayout
from shared.engine.model import LlamaModel


class PrefillEngine:
    grid_tokens: int

    def __init__(self, model: LlamaModel, pool: torch.Tensor, layout: KvLayout) -> None:
        raise NotImplementedError

    def prefill_chunk(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        prefix_slots: Sequence[int],
        chunk_slots: Sequence[int],
        *,
        on_layer: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
        want_logits: bool = True,
    ) -> torch.Tensor | None:
        """Logits [vocab] of the last position; None when not wanted. Raises Cancelled."""
        raise NotImplementedError
