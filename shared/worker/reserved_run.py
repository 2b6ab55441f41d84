"""The run that comes with a reservation: what its gateway packed and what the conductor chose."""

import logging

from shared.messages.envelope import MessageError, decode
from shared.messages.prefill import PrefillRun, Reserve, UnplacedRun

log = logging.getLogger("moonpool.worker")


def run_of(reserve: Reserve) -> PrefillRun | None:
    """None: there is none, or none that can be read; then its gateway sends it."""
    if not reserve.run:
        return None
    try:
        unplaced = decode(reserve.run, UnplacedRun)
    except MessageError as error:
        log.warning("%s: the run with its reservation: %s", reserve.ref.handle, error)
        return None
    return PrefillRun.model_construct(  # of parts that were checked as they came
        ref=reserve.ref,
        incarnation=reserve.incarnation,
        model=unplaced.model,
        tokens=unplaced.tokens,
        chain=reserve.chain,
        sampling=unplaced.sampling,
        decode=reserve.decode,
        source=reserve.source,
        cache=reserve.cache,
        reply_subject=unplaced.reply_subject,
        remaining_ms=reserve.remaining_ms,
        namespace=unplaced.namespace,
        traceparent=reserve.traceparent,
    )
