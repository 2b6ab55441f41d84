"""NICs, GPUs and NUMA nodes of machines that are made of files."""

from pathlib import Path

from shared.transport.topology import Paths, read_topology


def device(sysfs: Path, where: str, numa_node: int, **files: str) -> Path:
    path = sysfs / "devices" / where
    path.mkdir(parents=True)
    (path / "numa_node").write_text(f"{numa_node}\n")
    for name, text in files.items():
        (path / name).write_text(f"{text}\n")
    return path


def rdma(sysfs: Path, name: str, path: Path, *, state: str = "4: ACTIVE") -> None:
    port = sysfs / "class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    (sysfs / "class/infiniband" / name / "device").symlink_to(path)


def net(sysfs: Path, name: str, path: Path | None, *, state: str = "up") -> None:
    folder = sysfs / "class/net" / name
    folder.mkdir(parents=True)
    (folder / "operstate").write_text(f"{state}\n")
    (folder / "speed").write_text("100000\n")
    if path is not None:
        (folder / "device").symlink_to(path)


def numa(sysfs: Path, *cpus: str) -> None:
    for number, text in enumerate(cpus):
        folder = sysfs / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")


def gpu(sysfs: Path, address: str, path: Path) -> None:
    folder = sysfs / "bus/pci/devices"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / address).symlink_to(path)


def server(sysfs: Path) -> None:
    """Two sockets, each with a switch that holds a GPU and a NIC, and a NIC beside it."""
    numa(sysfs, "0-31", "32-63")
    for node, root in enumerate(("pci0000:10", "pci0000:80")):
        bus = root[-2:]
        switch = f"{root}/0000:{bus}:01.0"
        rdma(sysfs, f"mlx5_{2 * node}", device(sysfs, f"{switch}/0000:{bus}:02.0", node))
        rdma(sysfs, f"mlx5_{2 * node + 1}", device(sysfs, f"{root}/0000:{bus}:05.0", node))
        card = device(
            sysfs, f"{switch}/0000:{bus}:03.0", node, vendor="0x10de", **{"class": "0x030200"}
        )
        gpu(sysfs, f"0000:{bus}:03.0", card)


def test_memory_prefers_the_nics_of_its_own_socket_and_a_gpu_those_of_its_switch(
    tmp_path: Path,
) -> None:
    server(tmp_path)
    topology = read_topology(tmp_path)
    assert topology.numa_cpus == {0: "0-31", 1: "32-63"}
    assert topology.matrix() == {
        "cpu:0": Paths(("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3")),
        "cpu:1": Paths(("mlx5_2", "mlx5_3"), ("mlx5_0", "mlx5_1")),
        "cuda:0": Paths(("mlx5_0",), ("mlx5_1", "mlx5_2", "mlx5_3")),
        "cuda:1": Paths(("mlx5_2",), ("mlx5_0", "mlx5_1", "mlx5_3")),
    }
    assert topology.nics[0].gbit_per_s == 200.0


def test_a_nic_that_is_down_carries_nothing(tmp_path: Path) -> None:
    numa(tmp_path, "0-3")
    rdma(tmp_path, "mlx5_0", device(tmp_path, "pci0000:00/0000:00:01.0", 0), state="1: DOWN")
    rdma(tmp_path, "mlx5_1", device(tmp_path, "pci0000:00/0000:00:02.0", 0))
    assert read_topology(tmp_path).matrix() == {"cpu:0": Paths(("mlx5_1",), ())}


def test_without_rdma_network_interfaces_with_a_device_are_taken(tmp_path: Path) -> None:
    numa(tmp_path, "0-1")
    net(tmp_path, "eth0", device(tmp_path, "pci0000:00/0000:00:03.0", -1))
    net(tmp_path, "lo", None)
    topology = read_topology(tmp_path)
    assert [nic.name for nic in topology.nics] == ["eth0"]
    assert topology.matrix() == {"cpu:0": Paths(("eth0",), ())}
    assert topology.as_json()["nics"][0]["gbit_per_s"] == 100.0


def test_a_machine_that_says_nothing_has_no_paths(tmp_path: Path) -> None:
    topology = read_topology(tmp_path)
    assert topology.matrix() == {"cpu:0": Paths((), ())}


def test_this_machine_can_be_read() -> None:
    assert read_topology().matrix()
