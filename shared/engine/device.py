"""Where the engine computes, and how: a CPU or a CUDA device. Imports nothing that needs one."""

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from shared.engine.cpu_isa import cpu_isa
from shared.engine.errors import EngineError

DecodeAttentionKind = Literal["each", "batched", "flashinfer"]
_NAME = re.compile(r"cpu|cuda(:\d+)?")
# Read by cuBLAS when it starts; without it, its products on one device may differ between runs.
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device and what is done differently on it."""

    torch_device: torch.device
    decode_attention: DecodeAttentionKind
    """`each`: sequence by sequence, so that company changes no bits; else all in one call."""

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"


class CudaProperties(Protocol):
    """What torch says of a device, as far as it is read here."""

    name: str
    major: int
    minor: int
    multi_processor_count: int


CPU = ComputeDevice(torch.device("cpu"), "each")


def compute_device(name: str, *, is_exact: bool) -> ComputeDevice:
    """`cpu`, `cuda` (the first device) or `cuda:N`. Raises EngineError: what to do."""
    if not _NAME.fullmatch(name):
        raise EngineError(f"device: {name!r} is not cpu, cuda or cuda:N")
    if name == "cpu":
        return CPU
    index = int(name.partition(":")[2] or 0)
    _check_cuda(name, index)
    prepare_cuda()
    return ComputeDevice(torch.device("cuda", index), decode_attention_kind(is_exact=is_exact))


def decode_attention_kind(*, is_exact: bool) -> DecodeAttentionKind:
    """On CUDA."""
    if is_exact:
        return "each"
    return "flashinfer" if importlib.util.find_spec("flashinfer") is not None else "batched"


def prepare_cuda() -> None:
    """Products in full precision, summed in one order; before the first of them."""
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def describe_device(device: ComputeDevice) -> str:
    """What of the device decides which of torch's kernels run, and with them a result's bits."""
    if not device.is_cuda:
        return f"cpu {cpu_isa()}"
    return describe_cuda(torch.cuda.get_device_properties(device.torch_device))


def describe_cuda(gpu: CudaProperties) -> str:
    """For example `cuda sm_90 132 SMs, CUDA 12.8, NVIDIA H100`."""
    # cuBLAS chooses its kernels by these; the number of SMs decides how it splits a product.
    return (
        f"cuda sm_{gpu.major}{gpu.minor} {gpu.multi_processor_count} SMs, CUDA "
        f"{torch.version.cuda}, {gpu.name}"
    )


def _check_cuda(name: str, index: int) -> None:
    if not torch.cuda.is_available():
        reason = (
            f"this torch ({torch.__version__}) is built without CUDA; install one with it"
            if torch.version.cuda is None
            else "no CUDA device is visible here; check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
        raise EngineError(f"device: {name} was asked for, but {reason}, or set MOONPOOL_DEVICE=cpu")
    count = torch.cuda.device_count()
    if index >= count:
        raise EngineError(
            f"device: {name} was asked for, but there are {count} CUDA devices here (cuda:0 to "
            f"cuda:{count - 1})"
        )
