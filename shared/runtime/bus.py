"""The bus: typed request, publish and subscribe over NATS."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, Self, TypeVar

import nats.errors
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from shared.messages.common import ErrorCode, ErrorInfo, Ok
from shared.messages.envelope import Message, MessageError, decode, encode
from shared.runtime.clock import monotonic_s
from shared.runtime.errors import BusTimeout, NoResponder, ServiceError
from shared.runtime.nats_access import NatsAccess
from shared.runtime.nats_client import Answer, DirectClient, PlainServerError

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)

PENDING_BYTES = 32 << 20
"""What a client keeps while it is cut off; beyond it publishing fails."""
RECONNECT_WAIT_S = 0.25
PING_INTERVAL_S = 5.0
MAX_UNANSWERED_PINGS = 2
"""A server whose host vanished closes no connection: after 10 to 15 s the next one is tried. Less
would cut off, and lose the messages of, who only waits for a server that is slow for a while."""


class _TlsCloseFilter(logging.Filter):
    """asyncio warns of each TLS connection that the other side closes; nothing is wrong then."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("returning true from eof_received()")


_TLS_CLOSE_FILTER = _TlsCloseFilter()


_OK = encode(Ok())


class ErrorBody(Message):
    """Body of an error reply; the headers carry number and sentence for the nats CLI."""

    error: ErrorInfo


class Subscription:
    """A plain subscription; `stop` ends it at once."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def stop(self) -> None:
        try:
            await self._inner.unsubscribe()
        except (nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            return


class Bus:
    """One connection to NATS; it reconnects by itself, for ever."""

    def __init__(self, client: DirectClient, log: logging.Logger) -> None:
        self.client = client
        self._log = log
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._cut_off_s = float("-inf")
        self.bad_messages_total = 0

    @classmethod
    async def connect(cls, url: str, *, name: str, access: NatsAccess | None = None) -> Self:
        """Connected bus; waits for a server as long as it takes, saying so once.

        `url`: one server, or several of one cluster with commas between them.
        """
        log = logging.getLogger("moonpool.bus")
        client = DirectClient()
        bus = cls(client, log)
        logging.getLogger("asyncio").addFilter(_TLS_CLOSE_FILTER)
        state = {"is_waiting_said": False, "is_refusal_said": False}

        async def on_error(error: Exception) -> None:
            if client.is_connected:
                log.warning("nats: %s", error or type(error).__name__)
            elif _is_refusal(error):
                if not state["is_refusal_said"]:
                    state["is_refusal_said"] = True
                    log.error(
                        "NATS at %s refuses us (%s): check MOONPOOL_NATS_USER, "
                        "MOONPOOL_NATS_PASSWORD and MOONPOOL_NATS_CA, trying again",
                        redacted(url),
                        error,
                    )
            elif not state["is_waiting_said"]:
                state["is_waiting_said"] = True
                log.info("waiting for NATS at %s", redacted(url))

        async def on_disconnect() -> None:
            bus._cut_off_s = monotonic_s()
            if not client.is_closed:
                log.warning("cut off from NATS at %s, trying again", redacted(url))

        async def on_reconnect() -> None:
            bus._cut_off_s = monotonic_s()
            log.info("connected to NATS again")
            for callback in bus._reconnect_callbacks:
                callback()

        await client.connect(
            servers_of(url),
            name=name,
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
            reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=PING_INTERVAL_S,  # type: ignore[arg-type]
            max_outstanding_pings=MAX_UNANSWERED_PINGS,
            connect_timeout=5,
            pending_size=PENDING_BYTES,
            drain_timeout=5,
            **(access or NatsAccess()).options(),
        )
        await client.listen_for_answers()
        return bus

    @property
    def is_connected(self) -> bool:
        return bool(self.client.is_connected)

    def was_cut_off_within(self, seconds: float) -> bool:
        """Whether we are, or were so lately that others may not be back yet."""
        return not self.is_connected or monotonic_s() - self._cut_off_s < seconds

    @property
    def max_payload_bytes(self) -> int:
        return int(self.client.max_payload)

    @property
    def server_version(self) -> str:
        """Of the NATS server that we are connected to."""
        version = self.client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def num_servers(self) -> int:
        """That we know of: named in the address, or by the cluster itself."""
        return len(self.client.servers)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop after each reconnect."""
        self._reconnect_callbacks.append(callback)

    async def request(
        self, subject: str, message: Message, reply_type: type[R], *, timeout_s: float
    ) -> R:
        """The answer to `message`.

        Raises NoResponder (nobody listens), BusTimeout, or the ServiceError that was answered.
        """
        asked = self._asked(subject, message, timeout_s)
        return await self._answer(asked, subject, reply_type, timeout_s)

    def ask(
        self, subject: str, message: Message, reply_type: type[R], *, timeout_s: float
    ) -> Coroutine[Any, Any, R]:
        """As `request`, but sent before this returns; what it returns must be awaited.

        It leaves when the caller gives up the loop, and nothing that is sent after it goes along.
        """
        asked = self._asked(subject, message, timeout_s)
        self.client.write_out()
        return self._answer(asked, subject, reply_type, timeout_s)

    def _asked(
        self, subject: str, message: Message, timeout_s: float
    ) -> Coroutine[Any, Any, Answer]:
        try:
            return self.client.ask(subject, encode(message), timeout_s=timeout_s)
        except nats.errors.Error as error:
            raise self._cut_off(subject, error) from error

    async def _answer(
        self,
        asked: Coroutine[Any, Any, Answer],
        subject: str,
        reply_type: type[R],
        timeout_s: float,
    ) -> R:
        try:
            answer = await asked
        except nats.errors.NoRespondersError:
            raise NoResponder(subject) from None
        except (TimeoutError, nats.errors.TimeoutError):
            raise BusTimeout(subject, timeout_s) from None
        except nats.errors.Error as error:
            raise self._cut_off(subject, error) from error
        if answer.raw_headers and ERROR_CODE_HEADER in answer.headers:
            raise error_of(answer)
        try:
            return decode(answer.data, reply_type)
        except MessageError as error:
            raise ServiceError(
                ErrorCode.INTERNAL, f"answer on {subject} is not a {reply_type.__name__}: {error}"
            ) from None

    async def gather(
        self, subject: str, message: Message, reply_type: type[R], *, within_s: float
    ) -> list[R]:
        """What everybody who listens answers within this time; bad answers are left out."""
        answers: list[R] = []
        inbox = self.client.new_inbox()
        subscription = await self.subscribe(inbox, reply_type, answers.append)
        try:
            await self.client.publish(subject, encode(message), reply=inbox)
            await asyncio.sleep(within_s)
        except nats.errors.Error as error:
            raise self._cut_off(subject, error) from error
        finally:
            await subscription.stop()
        return answers

    async def publish(
        self, subject: str, message: Message, *, as_json: bool = False, at_once: bool = False
    ) -> None:
        """Hand `message` to the connection; it is kept for a while when cut off.

        `at_once`: it has left when this returns, unless the connection is full or cut off.
        """
        try:
            await self.client.publish(subject, encode(message, as_json=as_json))
        except nats.errors.Error as error:
            raise self._cut_off(subject, error) from error
        if at_once:
            self.client.write_out()
            await asyncio.sleep(0)

    async def subscribe(
        self,
        subject: str,
        message_type: type[M],
        handler: Callable[[M], bool | None],
        *,
        queue: str = "",
        is_acknowledged: bool = False,
    ) -> Subscription:
        """Call `handler` with each message, in order. It must be quick and not raise.

        `is_acknowledged`: whoever sends it as a request hears Ok once it was handled; not when
        `handler` returned False: it was for another one on the same subject.

        A payload that is not a `message_type` is counted and logged, nothing else.
        """

        def on_message(sent_to: str, reply: str, data: bytes, _headers: bytes) -> None:
            try:
                message = decode(data, message_type)
            except MessageError as error:
                self.bad_messages_total += 1
                self._log.warning("bad message on %s: %s", sent_to, error)
                return
            try:
                is_mine = handler(message) is not False
            except Exception:  # one bad handler call must not end the subscription
                self._log.exception("handler of %s failed", sent_to)
                return
            if is_acknowledged and is_mine and reply and not self.client.send(reply, _OK):
                self._log.debug("could not acknowledge on %s", reply)  # it is asked again

        return Subscription(await self.client.listen(subject, on_message, queue=queue))

    async def flush(self) -> None:
        """Until the server has everything published so far (bounded)."""
        # nats-py writes the ping of a flush ahead of what is still buffered: the answer to the
        # first one says little, the second ping comes after all of it.
        await self.client.flush(timeout=5)
        await self.client.flush(timeout=5)

    async def close(self) -> None:
        """Send what is buffered and close; bounded."""
        try:
            if self.client.is_connected:
                await self.client.drain()
        except (TimeoutError, nats.errors.Error) as error:
            self._log.debug("drain of the connection ended early: %r", error)
        finally:
            await self.client.close()

    @staticmethod
    def _cut_off(subject: str, error: Exception) -> ServiceError:
        return ServiceError(
            ErrorCode.INTERNAL,
            f"could not send on {subject}: {error or type(error).__name__}",
            is_retryable=True,
        )


class Answered(Protocol):
    """An answer as it came."""

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str] | None: ...


def error_of(answer: Answered) -> ServiceError:
    """The ServiceError in an error reply; one without our body becomes INTERNAL."""
    headers = answer.headers or {}
    try:
        return ServiceError.from_info(decode(answer.data, ErrorBody).error)
    except MessageError:
        text = headers.get(ERROR_HEADER, "unknown error")
        return ServiceError(ErrorCode.INTERNAL, text)


def _is_refusal(error: Exception) -> bool:
    """Whether the server is there and does not let us in."""
    return isinstance(error, nats.errors.AuthorizationError | ssl.SSLError | PlainServerError) or (
        "authorization violation" in str(error).lower()
    )


def servers_of(url: str) -> list[str]:
    """The servers of an address that may name several."""
    return [one for part in url.split(",") if (one := part.strip())] or [url]


def redacted(url: str) -> str:
    """`url` without users and passwords, for logs."""
    return ",".join(_redacted(one) for one in servers_of(url))


def _redacted(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
