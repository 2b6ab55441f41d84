"""What sysfs says of NICs, GPUs and NUMA nodes, and which NICs are near which memory.

As in the paper: for each kind of memory a list of preferred NICs and one of those that serve when
a preferred one fails. Reads files; opens no device.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSFS = Path("/sys")
NVIDIA, GPU_CLASSES = "0x10de", ("0x0300", "0x0302")


@dataclass(frozen=True, slots=True)
class Nic:
    name: str
    is_rdma: bool
    is_up: bool
    gbit_per_s: float | None
    numa_node: int | None
    pci: tuple[str, ...]
    """The bridges it is behind and its own address, from the root."""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    numa_node: int | None
    pci: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """NICs for one kind of memory."""

    preferred: tuple[str, ...]
    secondary: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    numa_cpus: dict[int, str]
    """CPU list by NUMA node."""
    nics: tuple[Nic, ...]
    gpus: tuple[Gpu, ...]

    @property
    def carriers(self) -> tuple[Nic, ...]:
        """What may carry KV: RDMA devices, else the network interfaces; only those that are up."""
        up = [nic for nic in self.nics if nic.is_up]
        return tuple([nic for nic in up if nic.is_rdma] or up)

    def matrix(self) -> dict[str, Paths]:
        """By memory: `cpu:<NUMA node>` and `cuda:<number>`."""
        carriers = self.carriers
        found = {
            f"cpu:{node}": _paths(
                carriers, [nic for nic in carriers if nic.numa_node in (node, None)]
            )
            for node in sorted(self.numa_cpus) or [0]
        }
        for gpu in self.gpus:
            depth = max((_shared(gpu.pci, nic.pci) for nic in carriers), default=0)
            near = [nic for nic in carriers if depth and _shared(gpu.pci, nic.pci) == depth]
            found[gpu.name] = _paths(carriers, near)
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "numa_cpus": {str(node): cpus for node, cpus in self.numa_cpus.items()},
            "nics": [
                {
                    "name": nic.name,
                    "rdma": nic.is_rdma,
                    "up": nic.is_up,
                    "gbit_per_s": nic.gbit_per_s,
                    "numa_node": nic.numa_node,
                    "pci": nic.pci[-1] if nic.pci else None,
                }
                for nic in self.nics
            ],
            "gpus": [{"name": gpu.name, "numa_node": gpu.numa_node} for gpu in self.gpus],
            "matrix": {
                memory: [list(paths.preferred), list(paths.secondary)]
                for memory, paths in self.matrix().items()
            },
        }


def read_topology(sysfs: Path = SYSFS) -> Topology:
    """What is there; a file that cannot be read is taken for absent."""
    nodes = sorted((sysfs / "devices/system/node").glob("node[0-9]*"))
    numa_cpus = {int(node.name[4:]): _text(node / "cpulist") for node in nodes}
    rdma = [_rdma_nic(path) for path in _entries(sysfs / "class/infiniband")]
    net = [_net_nic(path) for path in _entries(sysfs / "class/net") if (path / "device").exists()]
    return Topology(numa_cpus, (*rdma, *net), tuple(_gpus(sysfs)))


def _rdma_nic(path: Path) -> Nic:
    ports = _entries(path / "ports")
    rates = [float(text) for port in ports if (text := _text(port / "rate").split(" ")[0])]
    return Nic(
        name=path.name,
        is_rdma=True,
        is_up=any("ACTIVE" in _text(port / "state") for port in ports),
        gbit_per_s=max(rates, default=None),
        numa_node=_numa_node(path / "device"),
        pci=_pci(path / "device"),
    )


def _net_nic(path: Path) -> Nic:
    speed = _text(path / "speed")
    return Nic(
        name=path.name,
        is_rdma=False,
        is_up=_text(path / "operstate") in ("up", "unknown"),
        gbit_per_s=int(speed) / 1000 if speed.isdigit() else None,
        numa_node=_numa_node(path / "device"),
        pci=_pci(path / "device"),
    )


def _gpus(sysfs: Path) -> Iterable[Gpu]:
    number = 0
    for path in _entries(sysfs / "bus/pci/devices"):
        is_gpu = _text(path / "class")[:6] in GPU_CLASSES
        if is_gpu and _text(path / "vendor") == NVIDIA:
            yield Gpu(f"cuda:{number}", _numa_node(path), _pci(path))
            number += 1


def _paths(carriers: Iterable[Nic], near: Iterable[Nic]) -> Paths:
    preferred = tuple(nic.name for nic in near)
    others = tuple(nic.name for nic in carriers if nic.name not in preferred)
    return Paths(preferred, others) if preferred else Paths(others, ())


def _pci(device: Path) -> tuple[str, ...]:
    """`0000:16:00.0` and the like in the real path, from the root complex on."""
    try:
        parts = device.resolve(strict=True).parts
    except OSError:
        return ()
    return tuple(part for part in parts if part.startswith("pci") or part.count(":") == 2)


def _shared(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """How many bridges two devices have in common."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def _numa_node(device: Path) -> int | None:
    """None: the machine does not say, or has one node."""
    text = _text(device / "numa_node")
    return int(text) if text.isdigit() else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
