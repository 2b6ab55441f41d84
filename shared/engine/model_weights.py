"""Which tensors a Llama-shaped model consists of, under the names the engine uses."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch

from shared.checkpoint.errors import CheckpointError
from shared.checkpoint.model_config import ModelConfig
from shared.engine.panels import panel_shape
from shared.engine.weights_file import TensorSpec

EMBEDDINGS = "embeddings"
FINAL_NORM = "final_norm"
LM_HEAD = "lm_head"


def layer_tensor(layer: int, part: str) -> str:
    return f"layers.{layer}.{part}"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer. Matrices that read the same input lie together: one GEMM."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    qkv = query + 2 * config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (hidden,),
        "qkv": (qkv, hidden),
        "attention_out": (hidden, query),
        "mlp_norm": (hidden,),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    if config.has_qkv_bias:
        shapes["qkv_bias"] = (qkv,)
    if config.has_qk_norm:
        shapes["query_norm"] = shapes["key_norm"] = (config.head_dim,)
    return shapes


def model_specs(config: ModelConfig, dtype: torch.dtype) -> Iterator[TensorSpec]:
    """All tensors of the model, in the order in which they are stored."""
    vocabulary = (config.vocab_size, config.hidden_size)
    yield TensorSpec(EMBEDDINGS, vocabulary, dtype)
    for layer in range(config.num_layers):
        for part, shape in layer_shapes(config).items():
            yield TensorSpec(layer_tensor(layer, part), shape, dtype)
    yield TensorSpec(FINAL_NORM, (config.hidden_size,), dtype)
    if not config.tied_embeddings:
        yield TensorSpec(LM_HEAD, vocabulary, dtype)


def panel_specs(config: ModelConfig, specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The same model with its matrices in panels; a tied head is stored beside the embeddings."""
    panels = [
        TensorSpec(spec.name, panel_shape(*spec.shape, spec.dtype), spec.dtype)
        if len(spec.shape) == 2 and spec.name != EMBEDDINGS
        else spec
        for spec in specs
    ]
    if config.tied_embeddings:
        dtype = panels[0].dtype
        shape = panel_shape(config.vocab_size, config.hidden_size, dtype)
        panels.append(TensorSpec(LM_HEAD, shape, dtype))
    return panels


def check_all_used(
    where: str, present: Iterable[str], used: Collection[str], ignored: tuple[str, ...]
) -> None:
    """A weight that the engine would leave out means another model, and wrong answers."""
    unused = sorted(name for name in present if name not in used and not name.endswith(ignored))
    if unused:
        raise CheckpointError(
            f"{where}: tensor {unused[0]} (and {len(unused) - 1} more) is not supported"
        )


def checkpoint_names(
    name: str, pattern: str, layer_names: Mapping[str, tuple[str, ...]], top: Mapping[str, str]
) -> list[str]:
    """The checkpoint's tensors that make up the engine's tensor `name`, rows under each other."""
    if name in top:
        return [top[name]]
    _, layer, part = name.split(".")
    return [pattern.format(layer, tail) for tail in layer_names[part]]


def stack_rows(
    where: str, names: list[str], tensors: list[torch.Tensor], shape: tuple[int, ...]
) -> torch.Tensor:
    """The tensors under each other; raises CheckpointError when they are not `shape` together."""
    does_fit = sum(len(tensor) for tensor in tensors) == shape[0] and all(
        tensor.shape[1:] == shape[1:] for tensor in tensors
    )
    if not does_fit:
        found = ", ".join(
            f"{name} {list(tensor.shape)}" for name, tensor in zip(names, tensors, strict=True)
        )
        raise CheckpointError(
            f"{where}: {found}: the configuration asks for {list(shape)}"
            f"{' together' if len(tensors) > 1 else ''}"
        )
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
