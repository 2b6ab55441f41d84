"""Real transfer processes for tests, and workers attached to them from the test process."""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from scripts.launcher.processes import PR_SET_PDEATHSIG
from shared.kv.block_keys import chain_keys
from shared.messages.common import RequestRef
from shared.messages.pool import AllocateReply, Blocks, SealBlock
from shared.messages.transfer import KvGeometry
from shared.worker.pool_client import PoolClient
from tests.support.deadline import PATIENCE, wait_until

ROOT = bytes(range(16))
GEOMETRY = KvGeometry(num_layers=4, block_tokens=16, token_bytes=64)
POOL_BYTES = 256 * GEOMETRY.block_bytes
_libc = ctypes.CDLL(None)


class SharedFolder:
    """A folder on the tmpfs for the transfers of one test; gone with it."""

    def __init__(self) -> None:
        self.path = Path(f"/dev/shm/moonpool-{os.getpid()}-{secrets.token_hex(3)}")

    def __enter__(self) -> Self:
        self.path.mkdir(mode=0o700)
        return self

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self.path)

    def names(self, suffix: str = "") -> list[str]:
        return sorted(path.name for path in self.path.iterdir() if path.name.endswith(suffix))


class TransferNode:
    """One `python -m services.transfer`."""

    def __init__(
        self,
        node: str,
        folder: SharedFolder,
        nats_url: str,
        log: Path,
        pool_bytes: int,
        transport: str,
        settings: Mapping[str, str],
    ) -> None:
        self.node = node
        self._folder = folder
        self._log = log
        self._environment = {
            **os.environ,
            "MOONPOOL_NATS_URL": nats_url,
            "MOONPOOL_INSTANCE_ID": node,
            "MOONPOOL_SHARED_DIR": str(folder.path),
            "MOONPOOL_POOL_BYTES": str(pool_bytes),
            "MOONPOOL_INDEX_TIMEOUT_S": "0.3",
            "MOONPOOL_PEER_TIMEOUT_S": "1",
            "MOONPOOL_TRANSPORTS": transport,
            "MOONPOOL_DRAIN_TIMEOUT_S": "3",
            "PYTHONFAULTHANDLER": "1",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self.end()

    def start(self) -> None:
        before = set(self._folder.names(".sock"))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.transfer"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        try:
            wait_until(
                lambda: self.has_ended or self._has_new_socket(before),
                timeout_s=20,
                what=f"socket of {self.node}",
            )
            assert not self.has_ended, self.log
        except BaseException:
            self._process.kill()
            self.wait()
            raise

    def _has_new_socket(self, before: set[str]) -> bool:
        new = set(self._folder.names(".sock")) - before
        return any(name.startswith(f"{self.node}.") for name in new)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 10.0) -> int:
        """The exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s * PATIENCE)
        self._process = None
        return code

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def end(self) -> int:
        """SIGTERM, then its exit code."""
        if self.has_ended:
            return self.wait()
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.send(signal.SIGABRT)  # its threads' stacks go to the log
            self.wait()
            raise AssertionError(f"{self.node} did not stop:\n{self.log}") from None


class TransferHost:
    """One host with a shared folder; starts nodes on it and ends all of it on leaving."""

    def __init__(self, nats_url: str, logs: Path, transport: str = "local") -> None:
        self.transport = transport
        """The only one of its nodes: with tcp they are as on hosts of their own."""
        self._nats_url = nats_url
        self._logs = logs
        self._stack = ExitStack()
        # NATS of a test worker is shared: other tests have other node names.
        self._suffix = secrets.token_hex(3)

    def __enter__(self) -> Self:
        self.folder = self._stack.enter_context(SharedFolder())
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def start(
        self,
        name: str,
        *,
        pool_bytes: int = POOL_BYTES,
        nats_url: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> TransferNode:
        """`settings` are more variables of the process."""
        node = f"{name}-{self._suffix}"
        transfer = TransferNode(
            node,
            self.folder,
            nats_url or self._nats_url,
            self._logs / f"{node}.log",
            pool_bytes,
            self.transport,
            settings or {},
        )
        return self._stack.enter_context(transfer)

    async def attach(
        self,
        transfer: TransferNode | None,
        *,
        instance: str = "worker",
        root: bytes = ROOT,
        geometry: KvGeometry = GEOMETRY,
        max_slots: int | None = 200,
        timeout_s: float = 10.0,
    ) -> PoolClient:
        return await PoolClient.attach(
            self.folder.path,
            node=None if transfer is None else transfer.node,
            instance=instance,
            incarnation="1",
            role="prefill",
            root=root,
            geometry=geometry,
            max_slots=max_slots,
            timeout_s=timeout_s,
        )


def make_chain(num_blocks: int, seed: int) -> bytes:
    tokens = np.random.default_rng(seed).integers(0, 1000, num_blocks * 16).astype(np.int32)
    return chain_keys(ROOT, tokens, 16)


def block_bytes_of(key: bytes, geometry: KvGeometry = GEOMETRY) -> npt.NDArray[np.uint8]:
    """What the block of a key holds in these tests: made from the key, so that any mix-up shows."""
    generator = np.random.default_rng(int.from_bytes(key, "little"))
    return generator.integers(0, 256, geometry.block_bytes, dtype=np.uint8)


def view(pool: PoolClient, slot: int, geometry: KvGeometry = GEOMETRY) -> npt.NDArray[np.uint8]:
    """The bytes of a slot as the worker sees them."""
    all_bytes = np.frombuffer(pool.data, dtype=np.uint8)
    start = slot * geometry.block_bytes
    return all_bytes[start : start + geometry.block_bytes]


async def store_chain(pool: PoolClient, handle: str, chain: bytes, start: int = 0) -> Blocks:
    """Allocate, fill and seal the blocks of `chain` from `start` on."""
    keys = [chain[at : at + 16] for at in range(start * 16, len(chain), 16)]
    given: AllocateReply = await pool.allocate(handle, len(keys))
    blocks = []
    for key, slot, generation in zip(keys, given.slots, given.generations, strict=True):
        view(pool, slot)[:] = block_bytes_of(key)
        blocks.append(SealBlock(slot=slot, generation=generation, valid_tokens=16, key=key))
    return await pool.seal(handle, start, chain, blocks)


def check_bytes(pool: PoolClient, chain: bytes, blocks: Blocks) -> None:
    """The held blocks are the leading ones of `chain`, byte by byte."""
    for index, slot in enumerate(blocks.slots):
        expected = block_bytes_of(chain[index * 16 : index * 16 + 16])
        assert np.array_equal(view(pool, slot), expected), f"block {index} has other bytes"
    assert pool.generations_hold(blocks.slots, blocks.generations)


def request_ref(request_id: str = "r1") -> RequestRef:
    return RequestRef(request_id=request_id, gateway="g", gateway_incarnation="1")
