"""Starts requests: from a checked body to an Answer. Owns which ones are in flight."""

import asyncio
import random
import secrets
from dataclasses import dataclass, replace

from services.gateway.answer import Answer
from services.gateway.bills import Bills
from services.gateway.callers import Callers, Tenant
from services.gateway.choices import Choices, Emit
from services.gateway.cluster_view import ClusterView
from services.gateway.errors import ApiError, bad_request
from services.gateway.job import Job
from services.gateway.namespaces import namespace_of
from services.gateway.openai_schema import ChatBody, CompletionBody
from services.gateway.prompts import Prompt, PromptMaker
from services.gateway.recent import Recent
from services.gateway.request_driver import DriverParts, RequestDriver
from services.gateway.request_life import RequestLife
from services.gateway.request_metrics import RequestMetrics
from services.gateway.request_options import RequestOptions
from services.gateway.request_record import RequestRecord
from services.gateway.request_trace import RequestTrace
from services.gateway.sampling import sampling_of
from services.gateway.text_stream import TextStream
from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.common import ErrorCode
from shared.messages.conductor import ModelInfo, PlaceReply
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class GeneratorLimits:
    request_timeout_s: float
    max_in_flight: int
    shares_cache: bool
    """Whether tenants find each other's blocks."""


class Generator:
    def __init__(
        self,
        *,
        bus: Bus,
        parts: DriverParts,
        view: ClusterView,
        prompts: PromptMaker,
        bills: Bills,
        recent: Recent,
        callers: Callers,
        model_names: frozenset[str],
        limits: GeneratorLimits,
        metrics: RequestMetrics,
    ) -> None:
        self._bus = bus
        self._parts = parts
        self._view = view
        self._prompts = prompts
        self._bills = bills
        self._recent = recent
        self._model_names = model_names
        self._callers = callers
        self._limits = limits
        self._metrics = metrics
        self._rng = random.Random()
        """Of pauses before the next try."""
        self._drivers: dict[str, RequestDriver] = {}
        self._running: dict[Choices, Tenant] = {}
        self._is_closed = False
        self._none_in_flight = asyncio.Event()
        self._none_in_flight.set()

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._prompts.tokenizer

    @property
    def model_names(self) -> list[str]:
        """Names under which the model may be asked for."""
        return sorted(self._model_names)

    @property
    def num_in_flight(self) -> int:
        """Choices that are prepared or run."""
        return self._callers.num_in_flight

    def check_open(self) -> None:
        """Raises ApiError once the gateway takes no more requests."""
        if self._is_closed:
            message = "This gateway is draining; send the request again."
            raise ApiError(503, message, code="draining")

    async def start(self, body: ChatBody | CompletionBody, options: RequestOptions) -> Choices:
        """Tokenise and begin; raises ApiError. The caller must end with `finish(choices)`."""
        self.check_open()
        tenant, num_choices = options.caller.tenant, body.num_choices
        try:
            self._check_room(num_choices)
            self._callers.take(tenant, num_choices)
        except ApiError as error:
            self._recent.note_no_room(body, options, error)
            raise
        self._none_in_flight.clear()
        try:
            choices = await self._prepared(body, options, monotonic_s())
        except BaseException:
            self._callers.give_back(tenant, num_choices)
            self._note_if_none()
            raise
        self._running[choices] = tenant
        try:
            choices.start()
            await asyncio.sleep(0)  # the question for a place is out before the rest is prepared
        except BaseException:
            self.finish(choices)
            raise
        return choices

    async def explain(
        self, body: ChatBody | CompletionBody, options: RequestOptions
    ) -> tuple[Job, PlaceReply]:
        """What would be decided of this request now; nothing runs and nothing is promised."""
        self.check_open()
        received_s = monotonic_s()
        model = self._model_for(body.model)
        namespace = self._namespace(body, options)
        prompts = await self._prompts.prompts(body, model, namespace)
        if len(prompts) > 1:
            raise bad_request("prompt", "Invalid 'prompt': only one can be explained at a time")
        job = self._job(body, options, prompts[0], model, received_s, 0)
        return job, await self._parts.calls.explain(job)

    async def _prepared(
        self, body: ChatBody | CompletionBody, options: RequestOptions, received_s: float
    ) -> Choices:
        model = self._model_for(body.model)
        self._prompts.check_biases(body.biases)
        prompts = await self._prompts.prompts(body, model, self._namespace(body, options))

        def make(index: int, emit: Emit) -> Answer:
            prompt = prompts[index // body.num_each]
            job = self._job(body, options, prompt, model, received_s, index)
            if index % body.num_each:
                # It may have waited for the first one: its time begins now, its deadline stays.
                job = replace(job, received_s=monotonic_s())
            return self._answer(body, options, job, emit)

        def first_goes_ahead(prompt: Prompt) -> bool:
            """The others find its blocks in the cache, or tell what it found of the prompt."""
            is_shareable = options.cache == "on" and prompt.num_tokens > model.grid_tokens
            return is_shareable or body.num_prompt_logprobs is not None

        return Choices(make, prompts, num_each=body.num_each, first_goes_ahead=first_goes_ahead)

    def _answer(
        self,
        body: ChatBody | CompletionBody,
        options: RequestOptions,
        job: Job,
        emit: Emit,
    ) -> Answer:
        eos = frozenset[int]() if body.ignore_eos else self._prompts.eos_token_ids
        life = RequestLife(
            max_tokens=job.sampling.max_tokens,
            eos_token_ids=eos,
            deadline_s=job.deadline_s,
            rng=self._rng,
            scored_tokens=0 if job.prompt_logprobs is None else job.num_tokens,
        )
        record = RequestRecord(received_s=job.received_s, prompt_tokens=job.num_tokens)
        trace = RequestTrace(
            self._bus,
            self._parts.tasks,
            name=options.ids.trace_name,
            job=job,
            is_on=options.is_traced,
        )
        driver = RequestDriver(self._parts, job, life, record, trace, emit)
        self._drivers[job.request_id] = driver
        trace.say("tokenised", prompt_tokens=job.num_tokens, max_tokens=job.sampling.max_tokens)
        return Answer(
            job=job,
            driver=driver,
            record=record,
            text=TextStream(self._prompts.detokenizer(), body.stop),
            bills=self._bills,
            metrics=self._metrics,
            recent=self._recent,
            tasks=self._parts.tasks,
        )

    def finish(self, choices: Choices) -> None:
        """The response is over, in whatever way."""
        choices.close()
        for answer in choices.answers.values():
            self._drivers.pop(answer.job.request_id, None)
        self._callers.give_back(self._running.pop(choices), choices.num_choices)
        self._note_if_none()

    async def close(self) -> None:
        """Refuse new requests; returns when none is left."""
        self._is_closed = True
        await self._none_in_flight.wait()

    def abandon_all(self) -> None:
        """The gateway stops now: every client gets an error, every instance a cancel."""
        for driver in list(self._drivers.values()):
            driver.abandon(ErrorCode.DRAINING, "this gateway stops; send the request again")

    def _check_room(self, num_choices: int) -> None:
        if self.num_in_flight + num_choices > self._limits.max_in_flight:
            raise ApiError(
                503,
                f"This gateway has {self.num_in_flight} requests in flight and takes "
                f"{self._limits.max_in_flight} at most; send this one a little later.",
                code="too_many_requests_in_flight",
            )

    def _namespace(self, body: ChatBody | CompletionBody, options: RequestOptions) -> bytes:
        tenant = "" if self._limits.shares_cache else options.caller.tenant.name
        return namespace_of(tenant, body.cache_salt)

    def _note_if_none(self) -> None:
        if not self.num_in_flight:
            self._none_in_flight.set()

    def check_model_name(self, name: str) -> None:
        """Raises ApiError 404 for a model that is not served here."""
        if name not in self._model_names:
            raise ApiError(
                404,
                f"The model '{name}' does not exist. This cluster serves: "
                + ", ".join(sorted(self._model_names)),
                param="model",
                code="model_not_found",
            )

    def _model_for(self, name: str) -> ModelInfo:
        self.check_model_name(name)
        if self._view.model is None:
            raise ApiError(503, f"Not ready: {self._view.missing}", code="no_instance")
        return self._view.model

    def _job(
        self,
        body: ChatBody | CompletionBody,
        options: RequestOptions,
        prompt: Prompt,
        model: ModelInfo,
        received_s: float,
        index: int,
    ) -> Job:
        """Choices after the first have a name and a seed of their own."""
        number = index % body.num_each
        seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed + number
        placement = body.placement
        suffix = f"-{index}" if index else ""
        return Job(
            request_id=options.ids.request_id + suffix,
            client_id=options.ids.client_id + suffix,
            model=model.name,
            packed_tokens=prompt.packed,
            num_tokens=prompt.num_tokens,
            chain=prompt.chain,
            sampling=sampling_of(body, prompt.max_tokens, seed % 2**SEED_BITS),
            cache=options.cache,
            prefill=placement.prefill if placement else None,
            decode=placement.decode if placement else None,
            received_s=received_s,
            deadline_s=received_s + self._limits.request_timeout_s,
            namespace=self._namespace(body, options),
            policy=body.policy,
            priority=options.priority,
            ttft_slo_ms=options.ttft_slo_ms,
            tbt_slo_ms=options.tbt_slo_ms,
            traceparent=options.traceparent,
            tenant=options.caller.tenant.name,
            user=body.user,
            # Those after the first tell what that one found.
            prompt_logprobs=None if number else body.num_prompt_logprobs,
        )
