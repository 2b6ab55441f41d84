"""Settings of a conductor."""

from pathlib import Path

from pydantic import Field, field_validator

from shared.runtime.settings import CommonSettings
from shared.scheduling.policies.registry import DEFAULT_POLICY, POLICIES


class ConductorSettings(CommonSettings):
    policy: str = DEFAULT_POLICY
    balancing_threshold: float = Field(
        default=1.5, ge=1.0, description="fetch when the best match is so many times the local one"
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
