"""From options to processes: names, settings and threads of every service. Starts nothing."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.credentials.credential_set import CredentialSet
from scripts.launcher.options import ClusterOptions
from scripts.launcher.processes import ProcessSpec
from scripts.launcher.readiness import Member

# Given to one process by the launcher; the user's own shell must not leak into all of them.
PER_PROCESS = (
    "MOONPOOL_INSTANCE_ID",
    "MOONPOOL_NODE",
    "MOONPOOL_HEALTH_FILE",
    "MOONPOOL_HTTP_FD",
    "MOONPOOL_ROLE",
)
# Replaced by a set of credentials, where there is one.
CREDENTIALS = (
    "MOONPOOL_NATS_USER",
    "MOONPOOL_NATS_PASSWORD",
    "MOONPOOL_NATS_CA",
    "MOONPOOL_REDIS_USER",
    "MOONPOOL_REDIS_PASSWORD",
    "MOONPOOL_SECRETS_DIR",
)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway is reached: a port, and the socket that listens there."""

    port: int
    fd: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the services of one cluster stand on."""

    nats_url: str
    redis_url: str
    shared_dir: Path
    admin_key: str
    gateway_sockets: tuple[Listening, ...]
    credentials: CredentialSet | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """Who belongs to a cluster; a process is named as its instance."""

    gateways: tuple[str, ...]
    conductors: tuple[str, ...]
    cache_indexes: tuple[str, ...]
    nodes: tuple[str, ...]
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    boths: tuple[str, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """Every service process, in the order in which they are started."""
        groups = (
            ("transfer", self.nodes),
            ("gateway", self.gateways),
            ("conductor", self.conductors),
            ("cache-index", self.cache_indexes),
            ("prefill", self.prefills),
            ("decode", self.decodes),
            ("prefill", self.boths),
        )
        return tuple(Member(service, name) for service, names in groups for name in names)

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(member.id for member in self.members)


def names_of(options: ClusterOptions) -> Names:
    def numbered(service: str, count: int) -> tuple[str, ...]:
        return tuple(f"{service}-{number}" for number in range(1, count + 1))

    if options.name is not None:
        return _names_after(options.name, options)
    return Names(
        gateways=numbered("gateway", options.gateways),
        conductors=numbered("conductor", options.conductors),
        cache_indexes=numbered("cache-index", options.cache_indexes),
        nodes=numbered("node", options.nodes),
        prefills=numbered("prefill", options.nodes * options.prefill_per_node),
        decodes=numbered("decode", options.nodes * options.decode_per_node),
        boths=numbered("both", options.nodes * options.both_per_node),
    )


def _names_after(node: str, options: ClusterOptions) -> Names:
    """Of one node that joins others: names that nobody else has."""

    def numbered(service: str, count: int) -> tuple[str, ...]:
        return tuple(f"{node}-{service}-{number}" for number in range(1, count + 1))

    return Names(
        gateways=(),
        conductors=(),
        cache_indexes=(),
        nodes=(node,),
        prefills=numbered("prefill", options.prefill_per_node),
        decodes=numbered("decode", options.decode_per_node),
        boths=numbered("both", options.both_per_node),
    )


def worker_threads(cores: int, prefills: int, decodes: int) -> tuple[int, int]:
    """Threads of one prefill and one decode worker so that a role fills the cores once.

    Decode is bound by memory, half of the cores saturate it.
    """
    return max(1, cores // max(prefills, 1)), max(1, cores // (2 * max(decodes, 1)))


def specs_of(options: ClusterOptions, around: Surroundings) -> Iterator[ProcessSpec]:
    """Every service of the cluster, in the order in which they are started."""
    names = names_of(options)
    spec = _SpecMaker(options, around)
    for name in names.nodes:
        yield spec.make("transfer", name, spec.pool())
    for name, listening in zip(names.gateways, around.gateway_sockets, strict=True):
        made = spec.make("gateway", name, spec.gateway(listening))
        # After SIGTERM alone it waits for a successor on its socket.
        ends = (signal.SIGTERM, signal.SIGINT)
        yield replace(made, fds=(listening.fd,), stop_signals=ends)
    for name in names.conductors:
        told = {"MOONPOOL_POLICY": options.policy, "MOONPOOL_ADMISSION": options.admission}
        given = {name: value for name, value in told.items() if value is not None}
        yield spec.make("conductor", name, given)
    for name in names.cache_indexes:
        yield spec.make("cache_index", name, {"MOONPOOL_REDIS_URL": around.redis_url})
    prefill_threads, decode_threads = worker_threads(
        len(os.sched_getaffinity(0)), len(names.prefills) + len(names.boths), len(names.decodes)
    )
    tokens = {"MOONPOOL_DECODE_TOKENS": str(options.decode_tokens)}
    for index, name in enumerate(names.prefills):
        node = names.nodes[index // options.prefill_per_node]
        yield spec.make("prefill", name, spec.worker(node, prefill_threads))
    for index, name in enumerate(names.decodes):
        node = names.nodes[index // options.decode_per_node]
        yield spec.make("decode", name, spec.worker(node, decode_threads) | tokens)
    for index, name in enumerate(names.boths):
        node = names.nodes[index // options.both_per_node]
        own = spec.worker(node, prefill_threads) | tokens | {"MOONPOOL_ROLE": "both"}
        yield spec.make("prefill", name, own)


class _SpecMaker:
    def __init__(self, options: ClusterOptions, around: Surroundings) -> None:
        self._options = options
        self._around = around
        left_out = PER_PROCESS if around.credentials is None else PER_PROCESS + CREDENTIALS
        self._base = {name: value for name, value in os.environ.items() if name not in left_out}

    def make(self, service: str, name: str, own: Mapping[str, str]) -> ProcessSpec:
        options = self._options
        env = {
            **self._base,
            "PYTHONUNBUFFERED": "1",
            "MOONPOOL_NATS_URL": self._around.nats_url,
            "MOONPOOL_INSTANCE_ID": name,
            "MOONPOOL_LOG_LEVEL": options.log_level,
            "MOONPOOL_METRICS_PORT": "0",
            "MOONPOOL_DRAIN_TIMEOUT_S": str(options.drain_timeout_s),
            **self._credentials(service),
            **own,
            **options.extra_env.get(service, {}),
            **options.extra_env.get(name, {}),
        }
        return ProcessSpec(name, (sys.executable, "-P", "-m", f"services.{service}"), env)

    def _credentials(self, service: str) -> dict[str, str]:
        found = self._around.credentials
        return {} if found is None else found.environment(service.replace("_", "-"))

    def gateway(self, listening: Listening) -> dict[str, str]:
        options = self._options
        tls = {"MOONPOOL_HTTP_CERT": options.http_cert, "MOONPOOL_HTTP_KEY": options.http_key}
        return {
            **{name: str(path) for name, path in tls.items() if path is not None},
            "MOONPOOL_HTTP_HOST": self._options.host,
            "MOONPOOL_HTTP_PORT": str(listening.port),
            "MOONPOOL_HTTP_FD": str(listening.fd),
            "MOONPOOL_ADMIN_KEY": self._around.admin_key,
            "MOONPOOL_MODEL": self._options.model,
        }

    def pool(self) -> dict[str, str]:
        return {
            "MOONPOOL_SHARED_DIR": str(self._around.shared_dir),
            "MOONPOOL_POOL_BYTES": str(self._options.pool_bytes),
        }

    def worker(self, node: str, threads: int) -> dict[str, str]:
        options = self._options
        count = str(options.threads or threads)
        chosen = {
            "MOONPOOL_DTYPE": options.dtype,
            "MOONPOOL_MODE": options.mode,
            "MOONPOOL_TIMED_BY": options.timed_by,
            "MOONPOOL_BLOCK_TOKENS": options.block_tokens and str(options.block_tokens),
        }
        return {
            "MOONPOOL_SHARED_DIR": str(self._around.shared_dir),
            "MOONPOOL_MODEL": options.model,
            "MOONPOOL_NODE": node,
            "MOONPOOL_THREADS": count,
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            # Waiting threads sleep instead of spinning on a core that another worker needs.
            "OMP_WAIT_POLICY": "PASSIVE",
            # Large buffers come back from the heap, not from fresh pages each time.
            "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
            **{name: value for name, value in chosen.items() if value},
        }
