"""Settings of a prefill or decode process."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from shared.decisions.profile_file import load_profile
from shared.runtime.settings import CommonSettings
from shared.scheduling.queue_discipline import DEFAULT_AGEING, DisciplineName


class WorkerSettings(CommonSettings):
    """MOONPOOL_* variables of a worker."""

    model: str = "SmolLM2-135M-Instruct"
    role: Literal["prefill", "decode", "both"] | None = Field(
        default=None,
        description="both: prefill and decode in one process; else the one of the service",
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    mode: Literal["exact", "fast"] = "exact"
    block_tokens: int | None = Field(
        default=None, ge=16, le=512, description="tokens of a block; the grid's when not set"
    )
    threads: int = Field(default=1, ge=1, description="threads of one matrix product")
    kernels: Literal["amx", "avx512", "avx2"] | None = Field(
        default=None,
        description="the instructions of our kernels on a CPU, the fastest here when not set. "
        "Hosts of different CPUs share bfloat16 KV with the same ones only",
    )
    timed_by: str | None = Field(
        default=None,
        description="dummy models: passes take the times of this hardware profile (its name or "
        "file) instead of computing",
    )
    device: str = Field(
        default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda or cuda:N"
    )
    device_tokens: int = Field(
        default=0,
        ge=0,
        description="prefill on cuda: tokens of KV kept on the device, one whole context at least",
    )
    shared_dir: Path = Field(
        default=Path("/dev/shm/moonpool"), description="where transfers of this host are found"
    )
    node: str | None = Field(default=None, description="attach to this node only")
    max_slots: int | None = Field(
        default=None,
        ge=1,
        description="most pool blocks this process may hold; half of the pool, but one and a half "
        "times the longest context at least, when not set",
    )
    max_queue: int = Field(default=256, ge=1, description="prefill: prompts promised at once")
    queue: DisciplineName = Field(
        default="shortest_first",
        description="prefill: the least remaining work first, aged; or fifo",
    )
    queue_ageing: float = Field(
        default=DEFAULT_AGEING,
        ge=0.0,
        description="prefill: seconds of work that a second of waiting makes up for",
    )
    tokens_per_s: float = Field(
        default=500.0, gt=0, description="prefill: assumed speed until it is learnt"
    )
    decode_tokens: int = Field(default=16_384, ge=1, description="decode: tokens of device cache")
    admit_tokens: int = Field(
        default=256,
        ge=1,
        description="decode: tokens of an answer that must have room when it is admitted",
    )
    saved_tokens: int | None = Field(
        default=None,
        ge=0,
        description="decode: tokens of KV kept in host memory for requests that were put out of "
        "the device cache; as many as that has when not set",
    )
    max_batch: int = Field(default=16, ge=1, description="decode: requests in the batch")
    profile: Path | None = Field(
        default=None,
        description="JSON file with the measured costs of these machines, as conductors read it: "
        "decode judges by it under the admission rule baseline",
    )

    @field_validator("profile")
    @classmethod
    def _is_a_profile(cls, value: Path | None) -> Path | None:
        if value is not None:
            load_profile(value)
        return value
