"""Settings of a service from MOONPOOL_* variables; a bad one ends the process with its name."""

import secrets
import sys
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "MOONPOOL_"
S = TypeVar("S", bound="CommonSettings")


class CommonSettings(BaseSettings):
    """What every service needs; each service adds its own in `settings.py`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    nats_url: str = "nats://127.0.0.1:4222"
    instance_id: str = Field(
        default="", pattern=r"^[A-Za-z0-9_-]*$", description="stable name of this process"
    )
    log_level: str = Field(default="INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    drain_timeout_s: float = Field(default=10.0, ge=0.0)
    cache_dir: Path = Path.home() / ".cache" / "moonpool"
    health_file: Path | None = Field(
        default=None, description="where the process writes its id for the health check"
    )


def load_settings(service: str, settings_type: type[S]) -> S:
    """The settings in the environment; ends the process with a clear line when one is bad."""
    try:
        settings = settings_type()
    except ValidationError as error:
        _exit_with_bad_settings(service, error)
    if settings.instance_id:
        return settings
    return settings.model_copy(update={"instance_id": f"{service}-{secrets.token_hex(3)}"})


def _exit_with_bad_settings(service: str, error: ValidationError) -> NoReturn:
    for problem in error.errors(include_url=False):
        variable = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
        sys.stderr.write(f"{service}: {variable}={problem['input']!r}: {problem['msg']}\n")
    raise SystemExit(2)
