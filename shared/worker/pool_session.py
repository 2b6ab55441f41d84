"""One attachment of a worker to a node's pool, with the pool as a tensor."""

from dataclasses import dataclass
from typing import Literal

import torch

from shared.engine.kv_layout import KvLayout, view_pool
from shared.engine.loaded_model import LoadedModel
from shared.messages.common import NodeRef
from shared.messages.transfer import KvGeometry
from shared.worker.pool_client import PoolClient
from shared.worker.settings import WorkerSettings

Role = Literal["prefill", "decode"]


@dataclass(slots=True)
class PoolSession:
    """Valid until `client.lost` is set; then everything held through it is gone."""

    client: PoolClient
    tensor: torch.Tensor | None

    @property
    def node(self) -> NodeRef:
        return self.client.node

    @property
    def slots(self) -> torch.Tensor:
        if self.tensor is None:
            raise RuntimeError("the pool session is closed")
        return self.tensor

    async def close(self) -> None:
        """Unmaps the pool. No engine may hold the tensor any more."""
        self.tensor = None
        await self.client.close()


def geometry_of(layout: KvLayout) -> KvGeometry:
    return KvGeometry(
        num_layers=layout.num_layers,
        block_tokens=layout.block_tokens,
        token_bytes=layout.layer_bytes // (2 * layout.block_tokens),
    )


async def open_session(
    settings: WorkerSettings, loaded: LoadedModel, role: Role, incarnation: str
) -> PoolSession:
    """Attach to the live pool with the fewest workers of this role; raises when there is none."""
    client = await PoolClient.attach(
        settings.shared_dir,
        instance=settings.instance_id,
        incarnation=incarnation,
        role=role,
        root=loaded.kv_format.root(),
        geometry=geometry_of(loaded.layout),
        max_slots=settings.max_slots,
        node=settings.node,
    )
    return PoolSession(client, view_pool(client.data, loaded.layout, client.num_slots))
