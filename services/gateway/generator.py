"""Starts requests: from a checked body to an Answer. Owns which ones are in flight."""

import asyncio
import random
import secrets
from dataclasses import dataclass

from services.gateway.answer import Answer
from services.gateway.bills import Bills
from services.gateway.cluster_view import ClusterView
from services.gateway.errors import ApiError
from services.gateway.job import Job
from services.gateway.openai_schema import ChatBody, CompletionBody
from services.gateway.prompts import Prompt, PromptMaker
from services.gateway.request_driver import DriverParts, RequestDriver
from services.gateway.request_ids import RequestIds
from services.gateway.request_life import RequestLife
from services.gateway.request_record import RequestRecord
from services.gateway.request_trace import RequestTrace
from services.gateway.sampling import sampling_of
from services.gateway.text_stream import TextStream
from shared.checkpoint.tokenizer import TextTokenizer
from shared.messages.common import CacheMode, ErrorCode
from shared.messages.conductor import ModelInfo
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What came beside the body."""

    ids: RequestIds
    cache: CacheMode | None  # None: as the body says
    is_traced: bool


class Generator:
    def __init__(
        self,
        *,
        bus: Bus,
        parts: DriverParts,
        view: ClusterView,
        prompts: PromptMaker,
        bills: Bills,
        model_names: frozenset[str],
        request_timeout_s: float,
    ) -> None:
        self._bus = bus
        self._parts = parts
        self._view = view
        self._prompts = prompts
        self._bills = bills
        self._model_names = model_names
        self._request_timeout_s = request_timeout_s
        self._drivers: dict[str, RequestDriver] = {}
        self._num_preparing = 0
        self._is_draining = False
        self._none_in_flight = asyncio.Event()
        self._none_in_flight.set()

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._prompts.tokenizer

    @property
    def num_in_flight(self) -> int:
        return len(self._drivers) + self._num_preparing

    def check_open(self) -> None:
        """Raises ApiError once the gateway drains."""
        if self._is_draining:
            message = "This gateway is draining; send the request again."
            raise ApiError(503, message, code="draining")

    async def start(self, body: ChatBody | CompletionBody, options: RequestOptions) -> Answer:
        """Tokenise and begin; raises ApiError. The caller must end with `finish(answer)`."""
        self.check_open()
        self._num_preparing += 1
        self._none_in_flight.clear()
        try:
            return await self._start(body, options, monotonic_s())
        finally:
            self._num_preparing -= 1
            self._note_if_none()

    async def _start(
        self, body: ChatBody | CompletionBody, options: RequestOptions, received_s: float
    ) -> Answer:
        model = self._model_for(body.model)
        self._prompts.check_biases(body.biases)
        if isinstance(body, ChatBody):
            prompt = await self._prompts.chat(body, model)
        else:
            prompt = await self._prompts.completion(body, model)
        job = self._job(body, options, prompt, model, received_s)
        eos = frozenset[int]() if body.ignore_eos else self._prompts.eos_token_ids
        life = RequestLife(
            max_tokens=prompt.max_tokens,
            eos_token_ids=eos,
            deadline_s=job.deadline_s,
            rng=random.Random(job.sampling.seed),
        )
        record = RequestRecord(received_s=received_s, prompt_tokens=prompt.num_tokens)
        trace = RequestTrace(
            self._bus,
            self._parts.tasks,
            name=options.ids.trace_name,
            request_id=job.request_id,
            start_s=received_s,
            is_on=options.is_traced,
        )
        driver = RequestDriver(self._parts, job, life, record, trace)
        self._drivers[job.request_id] = driver
        trace.say("tokenised", prompt_tokens=prompt.num_tokens, max_tokens=prompt.max_tokens)
        driver.start()
        return Answer(
            job=job,
            prompt=prompt,
            driver=driver,
            record=record,
            text=TextStream(self._prompts.detokenizer(), body.stop),
            bills=self._bills,
            tasks=self._parts.tasks,
        )

    def finish(self, answer: Answer) -> None:
        """The response is over, in whatever way."""
        answer.close()
        self._drivers.pop(answer.job.request_id, None)
        self._note_if_none()

    async def drain(self) -> None:
        """Refuse new requests; returns when none is left."""
        self._is_draining = True
        await self._none_in_flight.wait()

    def abandon_all(self) -> None:
        """The gateway stops now: every client gets an error, every instance a cancel."""
        for driver in list(self._drivers.values()):
            driver.abandon(ErrorCode.DRAINING, "this gateway stops; send the request again")

    def _note_if_none(self) -> None:
        if not self.num_in_flight:
            self._none_in_flight.set()

    def _model_for(self, name: str) -> ModelInfo:
        if name not in self._model_names:
            raise ApiError(
                404,
                f"The model '{name}' does not exist. This cluster serves: "
                + ", ".join(sorted(self._model_names)),
                param="model",
                code="model_not_found",
            )
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
    ) -> Job:
        seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**SEED_BITS
        placement = body.placement
        return Job(
            request_id=options.ids.request_id,
            client_id=options.ids.client_id,
            model=model.name,
            packed_tokens=prompt.packed,
            num_tokens=prompt.num_tokens,
            chain=prompt.chain,
            sampling=sampling_of(body, prompt.max_tokens, seed),
            cache=options.cache or body.cache,
            prefill=placement.prefill if placement else None,
            decode=placement.decode if placement else None,
            policy=placement.policy if placement else None,
            received_s=received_s,
            deadline_s=received_s + self._request_timeout_s,
        )
