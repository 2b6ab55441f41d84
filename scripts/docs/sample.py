"""What the examples of the documents are about: a prompt that a small cluster has served."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes are base64, as in JSON."""

    model: str
    root: str
    chain: str
    key: str
    """Of its first block."""
    last_key: str
    num_tokens: int
    request_id: str
    """Of its first request."""
    node: str
    node_incarnation: str
    """Of a node that holds it."""
    other_node: str
    other_incarnation: str


# Who answers for a name in angle brackets.
NAMES = {
    "node": "node-1",
    "transfer": "node-1",
    "prefill": "prefill-1",
    "decode": "decode-1",
    "gateway": "gateway-1",
    "conductor": "conductor-1",
    "cache-index": "cache-index-1",
}
