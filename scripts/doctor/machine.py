"""Memory, limits, clock and links of this machine, as the kernel tells them. Changes nothing."""

import ctypes
import itertools
import re
import resource
import shutil
from pathlib import Path

from scripts.doctor.check import Check
from scripts.launcher.run_folder import shared_folders
from services.transfer.settings import TransferSettings
from shared.transport.node_files import is_alive, nodes_in
from shared.transport.topology import Nic, Topology

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
MIN_OPEN_FILES = 256
"""Of a transfer: each worker and each peer is some."""
QUICK_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
UNSYNCHRONISED = 5
TIMEX_BYTES = 512
"""More than a `struct timex` has anywhere."""


def machine_checks(settings: TransferSettings, topology: Topology) -> list[Check]:
    return [
        shared_memory(settings),
        huge_pages(settings, _meminfo()),
        locked_memory(settings, has_rdma=any(nic.is_rdma for nic in topology.carriers)),
        open_files(),
        clock(),
        *links(topology),
    ]


def shared_memory(settings: TransferSettings) -> Check:
    folder = settings.shared_dir
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    usage = shutil.disk_usage(there)
    living = sum(map(is_alive, itertools.chain(*map(nodes_in, {folder, *shared_folders()}))))
    nodes = f"{living} node{'' if living == 1 else 's'} here"
    found = f"{there}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free, {nodes}"
    if usage.free < settings.pool_bytes:
        return Check(
            "shared memory",
            found,
            f"a pool of {settings.pool_bytes / GIB:.1f} GiB does not fit: lower "
            "MOONPOOL_POOL_BYTES or enlarge the tmpfs (docker: --shm-size)",
        )
    return Check("shared memory", found)


def huge_pages(settings: TransferSettings, meminfo: dict[str, int]) -> Check:
    """Whether there are as many as MOONPOOL_HUGE_PAGES needs."""
    if not meminfo:
        return Check("huge pages", "not known")
    free, total = meminfo.get("HugePages_Free", 0), meminfo.get("HugePages_Total", 0)
    page_bytes = meminfo.get("Hugepagesize", 2_048) << 10
    found = f"{free} of {total} free, MOONPOOL_HUGE_PAGES={settings.huge_pages}"
    wanted = -(-settings.pool_bytes // page_bytes)
    if settings.huge_pages == "require" and free < wanted:
        return Check(
            "huge pages",
            found,
            f"the pool needs {wanted}: sysctl vm.nr_hugepages={total - free + wanted}, "
            "or set MOONPOOL_HUGE_PAGES=try",
        )
    return Check("huge pages", found)


def locked_memory(settings: TransferSettings, *, has_rdma: bool) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB"
    found = f"{shown} (RDMA registers the whole pool)"
    if has_rdma and soft != resource.RLIM_INFINITY and soft < settings.pool_bytes:
        return Check(
            "locked memory",
            found,
            "too little for the pool over RDMA: ulimit -l unlimited (systemd: "
            "LimitMEMLOCK=infinity, docker: --ulimit memlock=-1)",
        )
    return Check("locked memory", found)


def open_files() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} (a gateway needs one for each client)"
    if soft < MIN_OPEN_FILES:
        return Check("open files", found, f"ulimit -n {MIN_OPEN_FILES * 16} at least")
    return Check("open files", found)


def clock() -> Check:
    """Deadlines travel as time left, so only certificates and traces need the right time."""
    try:
        source = CLOCK_SOURCE.read_text().strip()
    except OSError:
        source = "unknown"
    found = f"{source}, {_synchronised()}"
    if source in ("hpet", "acpi_pm", "jiffies"):
        return Check(
            "clock",
            found,
            f"reading {source} is slow: boot with clocksource=tsc where the CPU allows it "
            f"(quick ones: {', '.join(QUICK_CLOCKS)})",
        )
    return Check("clock", found)


def links(topology: Topology) -> list[Check]:
    """RDMA devices, then what else may carry KV, with the speed that each says it has."""
    rdma = [nic for nic in topology.nics if nic.is_rdma]
    others = [nic for nic in topology.nics if not nic.is_rdma]
    return [
        Check("RDMA devices", _named(rdma) or "none: KV goes over TCP between hosts"),
        Check("network links", _named(others) or "none with a device of its own"),
    ]


def _named(nics: list[Nic]) -> str:
    return ", ".join(f"{nic.name} ({_speed(nic)}{'' if nic.is_up else ', down'})" for nic in nics)


def _speed(nic: Nic) -> str:
    return "speed not known" if nic.gbit_per_s is None else f"{nic.gbit_per_s:g} Gbit/s"


def _meminfo() -> dict[str, int]:
    try:
        text = MEMINFO.read_text()
    except OSError:
        return {}
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}


def _synchronised() -> str:
    """What the kernel knows of NTP; asks only."""
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state < 0:
        return "not known whether it is synchronised"
    return "not synchronised" if state == UNSYNCHRONISED else "synchronised"
