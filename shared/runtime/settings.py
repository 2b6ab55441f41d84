"""Settings of a service from MOONPOOL_* variables; a bad one ends the process with its name."""

import os
import secrets
import sys
from pathlib import Path
from typing import NoReturn, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.runtime.nats_access import NatsAccess
from shared.runtime.tls import TlsFiles
from shared.telemetry.logs import LogFormat

PREFIX = "MOONPOOL_"
HIDDEN = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "NATS_PASSWORD",
        "REDIS_PASSWORD",
        "ADMIN_KEY",
        "API_KEYS",
        "NATS_URL",
        "REDIS_URL",
    )
)
"""Settings that are secrets or may hold one: a bad value of them is not shown."""
SECRETS_DIR = "MOONPOOL_SECRETS_DIR"
S = TypeVar("S", bound="CommonSettings")


class CommonSettings(BaseSettings):
    """What every service needs; each service adds its own in `settings.py`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    nats_url: str = Field(default="nats://127.0.0.1:4222", repr=False)
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    nats_ca: Path | None = Field(default=None, description="PEM: speak TLS, verify the server")
    nats_cert: Path | None = Field(default=None, description="PEM: shown to the server")
    nats_key: Path | None = Field(default=None, description="PEM key of nats_cert")
    instance_id: str = Field(
        default="", pattern=r"^[A-Za-z0-9_-]*$", description="stable name of this process"
    )
    log_level: str = Field(default="INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    log_format: LogFormat = Field(default="text", description="json: one object a line")
    drain_timeout_s: float = Field(default=10.0, ge=0.0)
    cache_dir: Path = Path.home() / ".cache" / "moonpool"
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="serve Prometheus here; 0: a free port"
    )
    metrics_host: str = Field(default="127.0.0.1", description="address of metrics_port")
    health_file: Path | None = Field(
        default=None, description="renewed while the process is ready: its age is the health check"
    )

    @model_validator(mode="after")
    def _none_is_ignored(self) -> Self:
        """What would not be used is said: somebody counts on it."""
        for name, value, needed, there in (
            ("CERT", self.nats_cert, "CA", self.nats_ca),
            ("KEY", self.nats_key, "CERT", self.nats_cert),
            ("PASSWORD", self.nats_password, "USER", self.nats_user),
        ):
            if value is not None and there is None:
                raise ValueError(f"MOONPOOL_NATS_{name} needs MOONPOOL_NATS_{needed}")
        return self

    def nats_access(self) -> NatsAccess:
        """How this process shows itself to NATS."""
        tls = None
        if self.nats_ca is not None:
            tls = TlsFiles(self.nats_ca, self.nats_cert, self.nats_key)
        password = None if self.nats_password is None else self.nats_password.get_secret_value()
        return NatsAccess(self.nats_user, password, tls)


def read_settings(settings_type: type[S]) -> S:
    """From the environment, then from files named as the variables in MOONPOOL_SECRETS_DIR."""
    folder = os.environ.get(SECRETS_DIR)
    if folder is None:
        return settings_type()
    if not Path(folder).is_dir():
        raise SystemExit(f"{SECRETS_DIR}={folder}: there is no such folder")
    return settings_type(_secrets_dir=folder)


def load_settings(service: str, settings_type: type[S]) -> S:
    """The settings in the environment; ends the process with a clear line when one is bad."""
    try:
        settings = read_settings(settings_type)
    except ValidationError as error:
        _exit_with_bad_settings(service, error)
    if settings.instance_id:
        return settings
    return settings.model_copy(update={"instance_id": f"{service}-{secrets.token_hex(3)}"})


def _exit_with_bad_settings(service: str, error: ValidationError) -> NoReturn:
    for problem in error.errors(include_url=False):
        variable = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
        if not problem["loc"]:
            sys.stderr.write(f"{service}: {problem['msg'].removeprefix('Value error, ')}\n")
            continue
        given = "…" if variable in HIDDEN else repr(problem["input"])
        sys.stderr.write(f"{service}: {variable}={given}: {problem['msg']}\n")
    raise SystemExit(2)
