"""The span of one HTTP request: the root of what moonpool does for it."""

from dataclasses import replace

from starlette.requests import Request

from services.gateway.choices import Choices
from services.gateway.request_options import RequestOptions
from shared.telemetry import about, tracing
from shared.telemetry.tracing import NoSpan, Value


class RequestSpan:
    """From a checked request to the end of its answer. `options` are those to go on with."""

    def __init__(self, request: Request, options: RequestOptions) -> None:
        parent = request.headers.get("traceparent", "")
        self._span = tracing.begin("request", parent) or NoSpan(options.traceparent)
        self.options = replace(options, traceparent=self._span.traceparent)
        if tracing.is_on():
            self._span.set(
                {
                    tracing.REQUEST_ID: options.ids.request_id,
                    "client_request_id": options.ids.client_id,
                    "http.request.method": request.method,
                    "url.path": request.url.path,
                }
            )
        about.work_for(options.ids.request_id, self._span.traceparent)

    def refused(self, error: BaseException) -> None:
        """It came to nothing."""
        self._span.end(str(error) or type(error).__name__)

    def ended(self, choices: Choices) -> None:
        """The answer is over, in whatever way."""
        if not tracing.is_on():
            return
        answers = list(choices.answers.values())
        told: dict[str, Value] = {
            "gen_ai.request.model": choices.first.job.model,
            "gen_ai.usage.input_tokens": sum(prompt.num_tokens for prompt in choices.prompts),
            "gen_ai.usage.output_tokens": choices.num_tokens,
            "cached_tokens": choices.first.record.cached_tokens,
            "ttft_s": choices.first.record.ttft_s,
            "outcome": ",".join(answer.end or "cancelled" for answer in answers),
        }
        self._span.set(told)
        failed = [answer.end for answer in answers if answer.end not in ("stop", "length")]
        self._span.end(failed[0] or "cancelled" if failed else "")
