"""Reads a calibration profile: measured costs of these machines, the cost model's priors."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.scheduling.cost_model import CostProfile, PrefillCoefficients


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PrefillPart(_Strict):
    """base + linear (n-p) + quadratic (n^2-p^2), lengths in 1,024 tokens."""

    base_s: float = Field(ge=0)
    linear_s: float = Field(gt=0)
    quadratic_s: float = Field(ge=0)


class ProfileFile(_Strict):
    """Every part may be left out: the default then stands."""

    prefill: PrefillPart | None = None
    decode_step_s: float | None = Field(default=None, gt=0)
    decode_sequence_s: float | None = Field(default=None, ge=0)
    decode_context_s: float | None = Field(default=None, ge=0)
    transfer_bytes_per_s: float | None = Field(default=None, gt=0)
    transfer_base_s: float | None = Field(default=None, ge=0)
    disk_bytes_per_s: float | None = Field(default=None, gt=0)
    request_s: float | None = Field(default=None, ge=0)


def load_profile(path: Path) -> CostProfile:
    """Raises ValueError that names the file and the field."""
    try:
        given = ProfileFile.model_validate_json(path.read_bytes()).model_dump(exclude_none=True)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{path}: {where}: {first['msg']}") from error
    if "prefill" in given:
        given["prefill"] = PrefillCoefficients(**given["prefill"])
    return CostProfile(**given)
