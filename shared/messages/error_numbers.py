"""The number of each ErrorCode: the status over HTTP, and the code in the header of a NATS service
error, which the services specification wants as a number."""

from shared.messages.common import ErrorCode

ERROR_NUMBERS: dict[ErrorCode, int] = {
    ErrorCode.BAD_REQUEST: 400,
    ErrorCode.UNKNOWN_INSTANCE: 400,
    ErrorCode.CONTEXT_EXCEEDED: 400,
    ErrorCode.UNKNOWN_MODEL: 404,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.CANCELLED: 499,
    ErrorCode.FORMAT_MISMATCH: 500,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NO_INSTANCE: 503,
    ErrorCode.VOID_INCARNATION: 503,
    ErrorCode.DRAINING: 503,
    ErrorCode.NOT_RESERVED: 503,
    ErrorCode.KV_LOST: 503,
    ErrorCode.PEER_LOST: 503,
    ErrorCode.POOL_LOST: 503,
    ErrorCode.DEADLINE: 504,
}
