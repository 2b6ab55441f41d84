"""What is still to be written to Redis for one node, merged: of each block only the last word.

So it does not grow with time, only with how much differs. Pure.
"""

from services.cache_index.segments import (
    SegmentChange,
    marks_of,
    removed_blocks,
    segment_key,
    segments_of,
)
from shared.kv.fingerprints import FINGERPRINT_BYTES, depth_classes
from shared.kv.ids import KEY_BYTES
from shared.messages.index import ResidencyEvent

REMOVED = -1


class PendingChanges:
    """Fields by segment: the mark to store, or REMOVED."""

    def __init__(self) -> None:
        self._segments: dict[bytes, dict[bytes, int]] = {}
        self.num_fields = 0
        self.seq = 0
        """Everything up to this event is written once nothing is pending."""

    def __bool__(self) -> bool:
        return bool(self._segments)

    def add(self, event: ResidencyEvent) -> None:
        """Removals come first, as in the pool."""
        self.seq = event.seq
        for removed in event.removed:
            for head, key in removed_blocks(removed):
                self._put(segment_key(event.root, head), key[:FINGERPRINT_BYTES], REMOVED)
        for run in event.stored:
            classes = depth_classes(run.start, len(run.keys) // KEY_BYTES)
            marks = marks_of(classes, run.tier)
            for head, first, keys in segments_of(run):
                segment = segment_key(event.root, head)
                for at in range(0, len(keys), KEY_BYTES):
                    mark = marks[first + at // KEY_BYTES]
                    self._put(segment, keys[at : at + FINGERPRINT_BYTES], mark)

    def _put(self, segment: bytes, field: bytes, mark: int) -> None:
        fields = self._segments.setdefault(segment, {})
        self.num_fields += field not in fields
        fields[field] = mark

    def take(self, max_fields: int) -> list[SegmentChange]:
        """The next segments, about so many fields together, at least one; they are pending no
        more: give them back with `put_back` when they could not be written."""
        taken: list[SegmentChange] = []
        num_fields = 0
        while self._segments and num_fields < max_fields:
            segment = next(iter(self._segments))
            fields = self._segments.pop(segment)
            num_fields += len(fields)
            stored = {field: mark for field, mark in fields.items() if mark != REMOVED}
            taken.append(
                SegmentChange(
                    segment=segment,
                    removed=b"".join(f for f, mark in fields.items() if mark == REMOVED),
                    stored=b"".join(stored),
                    marks=bytes(stored.values()),
                )
            )
        self.num_fields -= num_fields
        return taken

    def put_back(self, changes: list[SegmentChange]) -> None:
        """What was not written; what came since counts more."""
        for change in changes:
            newer = self._segments.get(change.segment, {})
            for at in range(0, len(change.removed), FINGERPRINT_BYTES):
                field = change.removed[at : at + FINGERPRINT_BYTES]
                if field not in newer:
                    self._put(change.segment, field, REMOVED)
            for at in range(0, len(change.stored), FINGERPRINT_BYTES):
                field = change.stored[at : at + FINGERPRINT_BYTES]
                if field not in newer:
                    self._put(change.segment, field, change.marks[at // FINGERPRINT_BYTES])
