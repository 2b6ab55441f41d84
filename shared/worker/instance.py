"""A worker process: the model, the compute thread, and the roles that work with them."""

import asyncio
import logging

from shared.checkpoint.errors import CheckpointError
from shared.engine.errors import EngineError
from shared.engine.linear import panel_mode
from shared.engine.loaded_model import LoadedModel, load_model
from shared.engine.self_test import run_self_test
from shared.messages import subjects
from shared.messages.common import ErrorCode, Ok
from shared.messages.worker import SetRole, WorkerRole
from shared.native.file_lock import LockTimeout
from shared.runtime.errors import ServiceError
from shared.runtime.lifecycle import Context
from shared.runtime.micro import Endpoint
from shared.simulator.hardware import Hardware, load_hardware
from shared.worker.compute import ComputeThread
from shared.worker.pool_session import Role
from shared.worker.role_unit import RoleUnit
from shared.worker.settings import WorkerSettings

log = logging.getLogger("moonpool.worker")
STOP_UNIT_S = 3.0
ROLES: dict[WorkerRole, tuple[Role, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "both": ("prefill", "decode"),
}


class WorkerService:
    """A `Service` for the runtime; both worker mains run it, each with its role."""

    def __init__(self, settings: WorkerSettings, role: Role) -> None:
        self._settings = settings
        self._wanted: WorkerRole = settings.role or role
        self._change = asyncio.Event()
        self._compute = ComputeThread()
        self._loaded: LoadedModel
        self.units: dict[Role, RoleUnit] = {}

    async def start(self, context: Context[WorkerSettings]) -> None:
        self._loaded = await self._compute.run(self._load_model)
        context.log.info("model %s is loaded", self._loaded.source.name)
        for role in ROLES[self._wanted]:
            await self._start_unit(context, role)
        context.state = "ready"
        context.tasks.start_soon(self._keep_role(context), name="role")

    async def drain(self) -> None:
        """All roles at once: what runs in one may need the other."""
        timeout_s = self._settings.drain_timeout_s
        await asyncio.gather(*(unit.drain(timeout_s) for unit in self.units.values()))

    async def stop(self) -> None:
        units, self.units = list(self.units.values()), {}
        try:
            await asyncio.gather(*(unit.stop(STOP_UNIT_S) for unit in units))
        finally:
            self._compute.close()

    async def set_role(self, message: SetRole) -> Ok:
        """Taken at once, done when what runs in the old role has ended; a later one counts."""
        self._wanted = message.role
        self._change.set()
        return Ok()

    async def _keep_role(self, context: Context[WorkerSettings]) -> None:
        while True:
            await self._change.wait()
            self._change.clear()
            await self._switch(context)

    async def _switch(self, context: Context[WorkerSettings]) -> None:
        """Drain the roles that are not wanted any more, then begin those that are."""
        wanted = ROLES[self._wanted]
        ending = [unit for role, unit in self.units.items() if role not in wanted]
        if ending:
            log.info("%s changes to the role %s", context.id, self._wanted)
        for unit in ending:
            await unit.drain(self._settings.drain_timeout_s)
            await unit.stop(STOP_UNIT_S)
            self.units.pop(unit.role, None)  # it may have been stopped with the process
        for role in wanted:
            if role not in self.units and not context.stopping.is_set():
                await self._start_unit(context, role)

    async def _start_unit(self, context: Context[WorkerSettings], role: Role) -> None:
        unit = self.units[role] = RoleUnit(context, role, self._loaded, self._compute)
        await unit.start([self._role_endpoint(role, context.id)])

    def _role_endpoint(self, role: Role, instance_id: str) -> Endpoint[SetRole, Ok]:
        return Endpoint(
            name="role",
            subject=subjects.instance(role, instance_id, "role"),
            request_type=SetRole,
            reply_type=Ok,
            handler=self.set_role,
            description="Drain, then go on in another role",
        )

    def _pass_times(self) -> Hardware | None:
        try:
            return (
                None if self._settings.timed_by is None else load_hardware(self._settings.timed_by)
            )
        except ValueError as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, f"MOONPOOL_TIMED_BY: {error}") from error

    def _load_model(self) -> LoadedModel:
        """In the compute thread, whose thread count this sets."""
        settings = self._settings
        try:
            loaded = load_model(
                settings.model,
                dtype=settings.dtype,
                mode=settings.mode,
                cache_dir=settings.cache_dir,
                threads=settings.threads,
                block_tokens=settings.block_tokens,
                linear_mode=settings.kernels and panel_mode(settings.kernels),
                device=settings.device,
                times=self._pass_times(),
            )
            # What only takes its time has no arithmetic that could differ.
            failures = [] if loaded.times else run_self_test(loaded, settings.cache_dir)
        except (CheckpointError, EngineError) as error:
            raise ServiceError(ErrorCode.BAD_REQUEST, str(error)) from error
        except LockTimeout as error:
            raise ServiceError(ErrorCode.INTERNAL, str(error)) from error
        except OSError as error:  # read-only, full, not ours, or no folder
            raise ServiceError(
                ErrorCode.INTERNAL,
                f"the model cannot be loaded: {error}; converted weights and kernels go to "
                f"MOONPOOL_CACHE_DIR={settings.cache_dir}",
            ) from error
        if failures and settings.mode == "exact":
            raise ServiceError(
                ErrorCode.FORMAT_MISMATCH,
                "MOONPOOL_MODE=exact cannot be kept on this machine: " + "; ".join(failures),
            )
        return loaded
