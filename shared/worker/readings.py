"""An instance's report and the work it has done, as metrics."""

from collections.abc import Iterator

from shared.messages.reports import InstanceReport
from shared.telemetry import metrics
from shared.telemetry.metric import Reading
from shared.worker.parts import Load


def readings_of(report: InstanceReport, load: Load) -> Iterator[Reading]:
    """Of one role; a process with two roles shows both."""
    role, model = report.service, report.model
    yield metrics.RUNNING.of(report.running, role, model)
    yield metrics.WAITING.of(report.queued_requests, role, model)
    yield metrics.WORKER_READY.of(report.state == "ready", role, model)
    yield from _prefill(report, load) if role == "prefill" else _decode(report, load)


def _prefill(report: InstanceReport, load: Load) -> Iterator[Reading]:
    yield metrics.PREFILL_QUEUED_TOKENS.of(report.queued_tokens)
    yield metrics.PREFILL_EXPECTED_START.of(report.expected_start_s)
    yield metrics.PREFILL_TOKENS.of(load.computed_tokens_total)
    yield metrics.PREFILL_SECONDS.of(load.compute_s_total)


def _decode(report: InstanceReport, load: Load) -> Iterator[Reading]:
    yield metrics.DECODE_TOKENS.of(load.computed_tokens_total)
    yield metrics.DECODE_STEPS.of(load.steps_total)
    yield metrics.DECODE_SECONDS.of(load.compute_s_total)
    yield metrics.DECODE_CAPACITY.of(report.capacity_tokens)
    yield metrics.DECODE_FREE.of(report.free_tokens)
    yield metrics.DECODE_CONTEXT.of(report.context_in_batch_tokens)
    yield metrics.DECODE_PREEMPTED.of(report.preempted)
    yield metrics.DECODE_SAVED.of(report.saved_tokens)
    yield metrics.PREEMPTIONS.of(report.preemptions_total)
    yield metrics.DECODE_REFUSED.of(load.refused_total)
