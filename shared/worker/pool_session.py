"""One attachment of a worker to a node's pool, with the pool as a tensor."""

from typing import Literal

import torch

from shared.engine.kv_layout import KvLayout, view_pool
from shared.engine.loaded_model import LoadedModel
from shared.messages.common import NodeRef
from shared.messages.transfer import KvGeometry
from shared.worker.pool_client import PoolClient
from shared.worker.settings import WorkerSettings

Role = Literal["prefill", "decode"]


class PoolSession:
    """Valid until `client.lost` is set; then everything held through it is gone."""

    def __init__(self, client: PoolClient, layout: KvLayout) -> None:
        self.client = client
        self._slots: torch.Tensor | None = view_pool(client.data, layout, client.num_slots)

    @property
    def node(self) -> NodeRef:
        return self.client.node

    @property
    def slots(self) -> torch.Tensor:
        """All slots of the pool, in place."""
        if self._slots is None:
            raise RuntimeError("the pool session is closed")
        return self._slots

    def close(self) -> None:
        """Detach, once. The memory is unmapped when no engine holds the tensor any more."""
        if self._slots is not None:
            self._slots = None
            self.client.close()


def geometry_of(layout: KvLayout) -> KvGeometry:
    return KvGeometry(
        num_layers=layout.num_layers,
        block_tokens=layout.block_tokens,
        token_bytes=layout.layer_bytes // (2 * layout.block_tokens),
    )


async def open_session(
    settings: WorkerSettings,
    loaded: LoadedModel,
    role: Role,
    incarnation: str,
    timeout_s: float,
) -> PoolSession:
    """Attach to the live pool with the fewest workers of this role.

    Raises ServiceError: POOL_LOST when there is none in time.
    """
    client = await PoolClient.attach(
        settings.shared_dir,
        node=settings.node,
        instance=settings.instance_id,
        incarnation=incarnation,
        role=role,
        root=loaded.kv_format.root(),
        geometry=geometry_of(loaded.layout),
        max_slots=settings.max_slots,
        context_blocks=-(-loaded.config.max_positions // loaded.layout.block_tokens),
        timeout_s=timeout_s,
    )
    return PoolSession(client, loaded.layout)
