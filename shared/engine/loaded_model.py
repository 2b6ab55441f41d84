"""Loads a model and says what its KV depends on."""

import logging
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch

from shared.checkpoint.fingerprint import weights_fingerprint
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.model_config import ModelConfig, load_model_config
from shared.checkpoint.tokenizer import tokenizer_fingerprint
from shared.engine.device import ComputeDevice, compute_device, describe_device
from shared.engine.errors import EngineError
from shared.engine.heap import keep_freed_memory
from shared.engine.kernels import Kernels, load_kernels
from shared.engine.kv_layout import (
    GRID_TOKENS,
    LAYOUT_VERSION,
    TORCH_DTYPES,
    DtypeName,
    KvLayout,
)
from shared.engine.linear import (
    PANEL_MODES,
    LinearMode,
    best_linear_mode,
    is_row_independent,
    panel_mode,
)
from shared.engine.model import LlamaModel
from shared.engine.timed import PassTimes
from shared.engine.weights import load_weights
from shared.kv.kv_format import KvFormat

Mode = Literal["exact", "fast"]
# Raised when the engine's arithmetic changes the bits of KV.
ENGINE_REVISION = 5

log = logging.getLogger("moonpool.engine")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    source: ModelSource
    config: ModelConfig
    model: LlamaModel
    layout: KvLayout
    grid_tokens: int
    kv_format: KvFormat
    times: PassTimes | None = None
    """Of a dummy model: what its passes take instead of computing."""


def load_model(
    model: str,
    *,
    dtype: DtypeName = "float32",
    mode: Mode = "exact",
    cache_dir: Path,
    threads: int = 1,
    block_tokens: int | None = None,
    linear_mode: LinearMode | None = None,
    device: str = "cpu",
    times: PassTimes | None = None,
) -> LoadedModel:
    """Sets thread count and heap of the whole process. `block_tokens` defaults to the grid and
    `linear_mode` to the best one here; `device` is cpu, cuda or cuda:N; `times` are for dummy
    models only."""
    if dtype not in TORCH_DTYPES:
        raise EngineError(f"dtype: {dtype!r} is not one of {', '.join(TORCH_DTYPES)}")
    if threads < 1:
        raise EngineError(f"threads: {threads} is below 1")
    grid_tokens = GRID_TOKENS[dtype]
    block_tokens = grid_tokens if block_tokens is None else block_tokens
    if block_tokens < 1 or grid_tokens % block_tokens:
        raise EngineError(
            f"block_tokens: {block_tokens} does not divide the grid of {grid_tokens} tokens"
        )
    place = compute_device(device, is_exact=mode == "exact")
    torch.set_num_threads(threads)
    keep_freed_memory()
    start_s = perf_counter()
    source = locate(model)
    if times is not None and (source.kind != "dummy" or place.is_cuda):
        raise EngineError(f"{source.name} on {device}: only dummy models on a CPU can be timed")
    config = load_model_config(source)
    fingerprint = weights_fingerprint(source, cache_dir)
    read_s = perf_counter()
    kernels, linear_mode = _linears(config, dtype, cache_dir, linear_mode, place)
    kernels_s = perf_counter()
    weights = load_weights(
        source, config, dtype, fingerprint, cache_dir, in_panels=kernels is not None
    )
    mapped_s = perf_counter()
    llama = LlamaModel(config, weights, linear_mode, kernels, place)
    log.info(
        "%s (%s, %s) loaded: checkpoint %.2f s, kernels %.2f s, weights %.2f s, model %.2f s",
        source.name, dtype, f"{device}, {linear_mode}", read_s - start_s, kernels_s - read_s,
        mapped_s - kernels_s, perf_counter() - mapped_s,
    )  # fmt: skip
    multiplies, computes = _what_decides_bits(llama)
    is_any_threads = place.is_cuda or is_row_independent(linear_mode, TORCH_DTYPES[dtype])
    return LoadedModel(
        source=source,
        config=config,
        model=llama,
        layout=KvLayout(
            config.num_layers, block_tokens, config.num_kv_heads, config.head_dim, dtype
        ),
        grid_tokens=grid_tokens,
        kv_format=KvFormat(
            weights=fingerprint,
            architecture=config.architecture,
            tokenizer=tokenizer_fingerprint(source),
            mode=mode,
            dtype=dtype,
            linear_mode=multiplies if times is None else "timed",
            grid_tokens=grid_tokens,
            block_tokens=block_tokens,
            layout_version=LAYOUT_VERSION,
            engine_revision=ENGINE_REVISION,
            torch_version=torch.__version__,
            device=computes,
            threads=None if is_any_threads else threads,
        ),
        times=times,
    )


def _what_decides_bits(model: LlamaModel) -> tuple[str, str]:
    """`linear_mode` and `device` of the KV's format: hosts with other CPUs share what ours make."""
    if model.kernels is None:
        return model.linear_mode, describe_device(model.device)
    # All that torch computes is then the table of RoPE; the rest it copies.
    return model.kernels.bits, f"cpu, RoPE {model.rotary_fingerprint()}"


def _linears(
    config: ModelConfig,
    dtype: DtypeName,
    cache_dir: Path,
    asked: LinearMode | None,
    device: ComputeDevice,
) -> tuple[Kernels | None, LinearMode]:
    """The kernels where products are ours, and what multiplies."""
    if device.is_cuda:
        if asked not in (None, "cublas"):
            raise EngineError(
                f"linear_mode: {asked!r} is not for {device.torch_device}; MOONPOOL_KERNELS is for "
                "CPUs, leave it unset"
            )
        return None, "cublas"
    if asked == "cublas":
        raise EngineError("linear_mode: 'cublas' needs a CUDA device")
    kernels = _kernels(config, dtype, cache_dir, asked)
    if kernels is not None:
        return kernels, panel_mode(kernels.isa)
    return None, asked or best_linear_mode(TORCH_DTYPES[dtype])


def _kernels(
    config: ModelConfig, dtype: DtypeName, cache_dir: Path, linear_mode: LinearMode | None
) -> Kernels | None:
    """Ours where they were asked for, or nothing was and they are the best."""
    if linear_mode is not None and linear_mode not in PANEL_MODES:
        return None
    isa = None if linear_mode is None else PANEL_MODES[linear_mode]
    kernels = load_kernels(config, TORCH_DTYPES[dtype], cache_dir, isa)
    if kernels is None and linear_mode is not None:
        raise EngineError(
            f"linear_mode: {linear_mode!r} (MOONPOOL_KERNELS={isa}) needs gcc, a CPU with these "
            f"instructions for {dtype}, and a model with heads of a multiple of 16 values"
        )
    return kernels
