"""Every subject with its schemas and an example, as docs/nats.md shows them."""

from scripts.docs.entries import ROLES, SERVICES, Entry, Family, empty, of_roles
from shared.messages import (
    bill,
    common,
    conductor,
    decode,
    index,
    outcomes,
    prefill,
    recent,
    reports,
    tokens,
    worker,
)
from shared.messages import subjects as s
from shared.messages import trace as life
from shared.messages import transfer as pool
from shared.runtime.lifecycle import PingRequest

CONDUCTOR = Family(
    "Conductor",
    "One of all conductors answers.",
    (
        Entry(
            (s.CONDUCTOR_STATE,),
            "Everybody this conductor hears: instances, nodes, gateways, models, and how its "
            "predictions did.",
            common.Empty,
            conductor.StateReply,
            empty,
        ),
        Entry(
            (s.CONDUCTOR_MODELS,),
            "The models that ready instances serve, with the root of their keys.",
            common.Empty,
            conductor.ModelsReply,
            empty,
        ),
        Entry(
            (s.CONDUCTOR_EXPLAIN,),
            "What `place` would decide and why; promises nothing.",
            conductor.PlaceRequest,
            conductor.PlaceReply,
            lambda one: {
                "ref": {"request_id": "r1", "gateway": "g1", "gateway_incarnation": "i1"},
                "model": one.model,
                "num_tokens": one.num_tokens,
                "max_tokens": 16,
                "chain": one.chain,
            },
        ),
        Entry(
            (s.CONDUCTOR_PLACE,),
            "Where an attempt shall run; both instances have promised room.",
            conductor.PlaceRequest,
            conductor.PlaceReply,
        ),
        Entry(
            (s.CONDUCTOR_CHANGE_REPLICA,),
            "Have a prefix on so many nodes; `moonpool replicate` asks it.",
            conductor.ChangeReplicaRequest,
            conductor.ChangeReplicaReply,
            lambda one: {"model": one.model, "chain": one.chain, "num_replicas": 2},
        ),
        Entry(
            (s.CONDUCTOR_ASKED,),
            "Between conductors: promises that one of them is asking for.",
            conductor.Asked,
        ),
        Entry(
            (s.CONDUCTOR_MISSES,),
            "Between conductors: prefixes that were not where a request ran.",
            conductor.Misses,
        ),
        Entry(
            (s.CONDUCTOR_OUTCOMES,),
            "To every conductor: how reads, steps and attempts went, by which it keeps out what is "
            "healthy and fails.",
            outcomes.Outcomes,
        ),
    ),
)

INDEX = Family(
    "Index",
    "One of all cache-indexes answers; events and what they tell one another reach every one.",
    (
        Entry(
            (s.INDEX_MATCH,),
            "Which nodes hold how much of a chain.",
            index.MatchRequest,
            index.MatchReply,
            lambda one: {"root": one.root, "chain": one.chain},
        ),
        Entry(
            (s.INDEX_HOLDERS,),
            "Which nodes hold a block, and in which tier.",
            index.HoldersRequest,
            index.HoldersReply,
            lambda one: {"root": one.root, "key": one.key},
        ),
        Entry(
            (s.INDEX_COPIES,),
            "How many other nodes hold each of some blocks; 255 stands for more.",
            index.CopiesRequest,
            index.CopiesReply,
            lambda one: {"root": one.root, "node": one.node, "keys": one.chain},
        ),
        Entry(
            (s.INDEX_HOT,),
            "The prefixes that are used most, decayed over a minute.",
            index.HotRequest,
            index.HotReply,
            lambda _: {"limit": 2},
        ),
        Entry(
            (s.INDEX_STATS,),
            "What one cache-index knows and has seen.",
            common.Empty,
            index.IndexStats,
            empty,
        ),
        Entry(
            (s.cache_index("<cache-index>", "stats"),),
            "The same of this very one.",
            common.Empty,
            index.IndexStats,
            empty,
        ),
        Entry(
            (s.cache_index("<cache-index>", "contents"),),
            "Counts and digests by node, of its mirror or of Redis.",
            index.ContentsRequest,
            index.ContentsReply,
            lambda _: {"source": "redis"},
        ),
        Entry(
            (s.cache_index("<cache-index>", "prints"),),
            "A page of the first 8 bytes of the keys of a node's blocks.",
            index.PrintsRequest,
            index.PrintsReply,
            lambda one: {"node": one.node},
        ),
        Entry(
            (s.INDEX_LEAD,),
            "Be the one that acts for all of its kind, for a time.",
            index.Lead,
            index.LeadReply,
            lambda _: {"task": "example", "holder": "me", "lease_ms": 1000},
        ),
        Entry(
            (s.INDEX_CLAIM_FORMAT,),
            "Set the kv_format of a model, or be told what differs.",
            index.ClaimFormat,
            index.ClaimReply,
        ),
        Entry(
            (s.INDEX_REGISTER_NODE,),
            "A node starts; its incarnation becomes the current one.",
            index.RegisterNode,
            index.NodeLeaseReply,
        ),
        Entry(
            (s.INDEX_RENEW_NODE,),
            "A node lives; with its last event, so that a lost one shows.",
            index.RenewNode,
            index.NodeLeaseReply,
        ),
        Entry(
            (s.index_events("<node>"),),
            "What became readable on a node, or is no longer.",
            index.ResidencyEvent,
        ),
        Entry(
            (s.INDEX_EXPECTED,),
            "Blocks that an instance is computing.",
            index.Expected,
        ),
        Entry(
            (s.INDEX_NODE_SEEN,),
            "Between cache-indexes: a node lives.",
            index.NodeSeen,
        ),
        Entry(
            (s.INDEX_HEAT,),
            "Between cache-indexes: what was asked for.",
            index.Heat,
        ),
    ),
)

TRANSFER = Family(
    "Transfer",
    "That node answers. The first four are for nodes and the index, the others for operators.",
    (
        Entry(
            (s.transfer("<node>", "describe"),),
            "What the node holds and how peers read it.",
            common.Empty,
            pool.DescribeReply,
            empty,
        ),
        Entry(
            (s.transfer("<node>", "lease"),),
            "Hold the leading run of some keys for another node, for a time.",
            pool.LeaseRequest,
            pool.LeaseReply,
            lambda one: {
                "holder": {"id": "node-9", "incarnation": "i9"},
                "incarnation": one.node_incarnation,
                "root": one.root,
                "keys": one.chain,
                "ttl_ms": 1000,
            },
        ),
        Entry(
            (s.transfer("<node>", "release"),),
            "End a lease early.",
            pool.LeaseRelease,
            common.Ok,
            lambda _: {"lease_id": "5d41402abc4b2a76"},
        ),
        Entry(
            (s.transfer("<node>", "inventory"),),
            "A page of the blocks that are readable.",
            index.InventoryRequest,
            index.InventoryReply,
            empty,
        ),
        Entry(
            (s.transfer("<node>", "pin"),),
            "Keep the leading run of some keys in DRAM for a time; `moonpool pin`.",
            pool.PinRequest,
            pool.PinReply,
            lambda one: {"keys": one.key, "ttl_ms": 1000},
        ),
        Entry(
            (s.transfer("<node>", "replicate"),),
            "Bring the leading run of some keys here from another node.",
            pool.ReplicateRequest,
            pool.ReplicateReply,
            lambda one: {
                "keys": one.chain,
                "source": {"id": one.other_node, "incarnation": one.other_incarnation},
            },
        ),
        Entry(
            (s.transfer("<node>", "drain"),),
            "Take no new workers and hand over what is worth it; `moonpool drain`.",
            pool.NodeDrain,
            pool.NodeDrainReply,
            lambda _: {"is_over": True},
        ),
        Entry(
            (s.transfer("<node>", "drop"),),
            "Forget a block and everything after it; `moonpool drop`.",
            pool.DropRequest,
            pool.DropReply,
            lambda one: {"key": one.last_key},
        ),
        Entry(
            (s.transfer("<node>", "flush"),),
            "Forget every block that nobody holds; `moonpool flush`.",
            pool.FlushRequest,
            pool.FlushReply,
            lambda _: {"is_ssd": False},
        ),
    ),
)

WORKERS = Family(
    "Prefill and decode",
    "That instance answers.",
    (
        Entry(
            of_roles("reserve"),
            "Promise room for an attempt, for a short time.",
            prefill.Reserve,
            prefill.ReserveReply,
        ),
        Entry(
            (s.instance("prefill", "<prefill>", "run"),),
            "Compute a reserved prompt and hand it over to decode.",
            prefill.PrefillRun,
            common.Ok,
        ),
        Entry(
            (s.instance("decode", "<decode>", "run"),),
            "Expect a reserved request's KV, then generate its answer.",
            decode.DecodeRun,
            common.Ok,
        ),
        Entry(
            (s.instance("decode", "<decode>", "kv"),),
            "Layers of a block that are complete on a prefill's node: a hint.",
            decode.KvReady,
        ),
        Entry(
            (s.instance("decode", "<decode>", "judge"),),
            "Whether a computed prompt may join, before token 0 is given; asked where a request "
            "has a target for TBT and admission is `baseline`.",
            decode.Judge,
            decode.JudgeReply,
        ),
        Entry(
            (s.instance("decode", "<decode>", "handoff"),),
            "Take over a computed prompt; answered when all its KV is there.",
            decode.Handoff,
            decode.HandoffReply,
        ),
        Entry(
            of_roles("cancel"),
            "End an attempt or a reservation; an unknown one is ignored.",
            prefill.Cancel,
            common.Ok,
            lambda _: {"ref": {"request_id": "r1", "gateway": "g1", "gateway_incarnation": "i1"}},
        ),
        Entry(
            of_roles("drain"),
            "Promise no more room and finish what runs, or end that; `moonpool drain`.",
            worker.Drain,
            worker.DrainReply,
            lambda _: {"is_over": True},
        ),
        Entry(
            of_roles("role"),
            "Drain, then go on in another role; `moonpool role`.",
            worker.SetRole,
            common.Ok,
            lambda one: {"role": "prefill"},
        ),
    ),
)

GATEWAY = Family(
    "Gateway",
    "That gateway hears its tokens and answers for the bills of what it served.",
    (
        Entry(
            (s.gateway_bill("<gateway>"),),
            "The bill of a request.",
            bill.BillRequest,
            bill.FinishedBill,
            lambda one: {"request_id": one.request_id},
        ),
        Entry(
            (s.gateway_recent("<gateway>"),),
            "The requests that ended last, with their bills and decisions, from a number on.",
            recent.RecentRequest,
            recent.RecentReply,
            empty,
        ),
        Entry(
            (s.gateway_tokens("<gateway>", "<request>", 0).removesuffix("0") + "<attempt>",),
            "Tokens of one attempt. Whoever sends them as a request hears Ok.",
            tokens.TokenChunk,
        ),
    ),
)

OF_ALL = Family(
    "Of all services",
    "",
    (
        Entry(
            tuple(s.ping(service, f"<{service}>") for service in SERVICES),
            "Who this process is and whether it is ready. No responder: it is gone.",
            PingRequest,
            reports.PingReply,
            empty,
        ),
        Entry(
            tuple(s.report(role, f"<{role}>") for role in ROLES),
            "Heartbeat of an instance, twice a second (once when idle) and when something changes.",
            reports.InstanceReport,
        ),
        Entry((s.report("transfer", "<transfer>"),), "Heartbeat of a node.", reports.NodeReport),
        Entry(
            (s.report("gateway", "<gateway>"),), "Heartbeat of a gateway.", reports.GatewayReport
        ),
        Entry((s.FINISHED_BILLS,), "The bill of every request, when it ends.", bill.FinishedBill),
        Entry(
            (s.trace("<request>"),),
            "The life of one request, in JSON, when it asks for it (`x-moonpool-trace: 1`).",
            life.TraceEvent,
        ),
    ),
)
FAMILIES = (CONDUCTOR, INDEX, TRANSFER, WORKERS, GATEWAY, OF_ALL)
ENTRIES = tuple(entry for family in FAMILIES for entry in family.entries)
