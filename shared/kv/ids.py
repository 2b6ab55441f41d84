"""The names of things, as types; every layer uses these and no bare strings."""

from typing import NewType

RequestId = NewType("RequestId", str)
InstanceId = NewType("InstanceId", str)
NodeId = NewType("NodeId", str)
Incarnation = NewType("Incarnation", str)
"""New at each start of a process; what is said about an old one is void."""
BlockKey = NewType("BlockKey", bytes)
"""16 bytes: names a full block and everything before it."""
Slot = NewType("Slot", int)
"""The place of one block in a node's pool."""
Generation = NewType("Generation", int)
"""Counts the uses of a slot; a slot with another generation holds something else."""

KEY_BYTES = 16
SEGMENT_BLOCKS = 64
"""Blocks of one chain that the index keeps under one Redis key (docs/architecture.md)."""
