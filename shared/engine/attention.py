"""Attention over contiguous K and V of one sequence. Grouped query heads share a K/V head."""

import torch
import torch.nn.functional as F


class CausalMask:
    """Additive masks for a run of queries at the end of a context, as views of one triangle.

    With a `window` a query sees so many keys only, its own included.
    """

    def __init__(
        self, max_queries: int, max_keys: int, dtype: torch.dtype, window: int | None = None
    ) -> None:
        self._split = max_keys
        self._mask = torch.zeros(max_queries, max_keys + max_queries, dtype=dtype)
        triangle = torch.full((max_queries, max_queries), float("-inf"), dtype=dtype)
        self._mask[:, max_keys:] = triangle.triu(diagonal=1)
        if window is not None:
            # Keys at most as far right as `split + query - window` are out of sight.
            hidden = torch.full_like(self._mask, float("-inf")).tril(diagonal=max_keys - window)
            self._mask += hidden

    def at(self, num_queries: int, num_past: int, num_keys: int) -> torch.Tensor:
        """Query i sees keys 0 ... num_past + i, or those of them in its window."""
        first = self._split - num_past
        return self._mask[:num_queries, first : first + num_keys]


def attend_causal(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """query [rows, heads, dim], keys and values [tokens, kv_heads, dim] -> [rows, heads * dim]."""
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        enable_gqa=True,
    )
    return attended.squeeze(0).transpose(0, 1).reshape(len(query), -1)


def attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [heads, dim] over all keys -> [heads * dim].

    The heads that share a K/V head become the rows of one product: K and V are not repeated.
    """
    num_kv_heads = keys.shape[1]
    grouped = query.reshape(1, num_kv_heads, -1, query.shape[-1])
    attended = F.scaled_dot_product_attention(
        grouped, keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
    )
    return attended.reshape(-1)
