"""Settings of a conductor."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shared.decisions.profile_file import load_profile
from shared.runtime.settings import CommonSettings
from shared.scheduling.admission import DEFAULT_RULE, AdmissionRule
from shared.scheduling.policies.registry import DEFAULT_POLICY, POLICIES


class ModelSlo(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ttft_ms: float | None = Field(default=None, gt=0)
    tbt_ms: float | None = Field(default=None, gt=0)


class ConductorSettings(CommonSettings):
    policy: str = DEFAULT_POLICY
    balancing_threshold: float = Field(
        default=1.5, ge=1.0, description="fetch when the best match is so many times the local one"
    )
    max_sources: int = Field(
        default=2, ge=1, le=16, description="nodes that one prefix is fetched from at once"
    )
    match_timeout_ms: float = Field(
        default=20, gt=0, le=200, description="no answer of cache-index by then: nothing is cached"
    )
    admission: AdmissionRule = Field(
        default=DEFAULT_RULE, description="what is refused when targets would be missed"
    )
    ttft_slo_ms: float | None = Field(default=None, gt=0, description="target of every request")
    tbt_slo_ms: float | None = Field(default=None, gt=0, description="target of every request")
    model_slos: dict[str, ModelSlo] = Field(
        default_factory=dict, description='JSON: {"<model>": {"ttft_ms": ..., "tbt_ms": ...}}'
    )
    replication: Literal["on", "off"] = Field(
        default="on", description="copy hot prefixes ahead of need"
    )
    replication_bytes_per_s: int = Field(
        default=64_000_000, ge=1, description="what it may move from and to each node, in the mean"
    )
    profile: Path | None = Field(
        default=None, description="JSON file with the measured costs of these machines"
    )
    journal: Path | None = Field(
        default=None, description="write every event and its effects to this file"
    )

    @field_validator("policy")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in POLICIES:
            raise ValueError(f"must be one of {', '.join(POLICIES)}")
        return value

    @field_validator("profile")
    @classmethod
    def _is_a_profile(cls, value: Path | None) -> Path | None:
        if value is not None:
            load_profile(value)
        return value
