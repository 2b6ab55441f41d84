"""What a simulated cluster is made of and by which rules it serves."""

from dataclasses import dataclass

from shared.scheduling.admission import DEFAULT_RULE, AdmissionRule
from shared.scheduling.policies.registry import DEFAULT_POLICY
from shared.scheduling.queue_discipline import DEFAULT_AGEING, DisciplineName
from shared.scheduling.replication import ReplicationSettings
from shared.scheduling.slo import NO_SLO, Slo
from shared.simulator.hardware import Hardware
from shared.simulator.trace import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Sites:
    """As a cluster of moonpool is set up and serves, where the paper's has one instance a node.

    Several instances share a node and its pool. Each chunk of a prompt can be read when it is
    computed, a prompt looks in its node's pool again when its turn comes, who computes a prefix is
    known to those that are placed meanwhile, and what goes to decode on another node is readable
    there too.
    """

    prefills: tuple[str, ...]
    """The node of each prefill instance."""
    decodes: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.prefills, *self.decodes)))


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    hardware: Hardware
    policy: str = DEFAULT_POLICY
    num_prefills: int = 8
    num_decodes: int = 8
    sites: Sites | None = None
    """None: each instance has a node of its own, those of decode have no pool. Else there are as
    many instances as it has places."""
    pool_tokens: int = 3_000_000
    """Of each node with a pool; 0: nothing is kept."""
    eviction: str = "lru"
    discipline: DisciplineName | None = None
    """None: `shortest_first` under `moonpool`, else `fifo` as in the paper."""
    ageing: float = DEFAULT_AGEING
    grid_tokens: int = BLOCK_TOKENS
    """Only whole ones of them are shared."""
    chunk_tokens: int = 1_024
    """The paper's prefill_chunk is "typically more than 1,000 tokens"."""
    report_every_s: float = 0.5
    max_sources: int = 1
    balancing_threshold: float = 1.5
    slo: Slo = NO_SLO
    admission: AdmissionRule = DEFAULT_RULE
    is_learning: bool = True
    replication: ReplicationSettings | None = None
    """Copies ahead of need; None: only what requests fetch becomes a replica."""
    seed: int = 0

    @property
    def queue_discipline(self) -> DisciplineName:
        return self.discipline or ("shortest_first" if self.policy == "moonpool" else "fifo")
