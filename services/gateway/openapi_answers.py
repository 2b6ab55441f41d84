"""JSON schemas of what the gateway answers. Plain data."""

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_TEXT = {"type": ["string", "null"]}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | optional,
        "required": sorted(required),
    }


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


ERROR = _object(
    {
        "error": _object(
            {"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT},
            targets={"type": "object"},
        )
    }
)
_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_CHOICE = {
    "index": _COUNT,
    "finish_reason": {"enum": ["stop", "length"]},
    "logprobs": {"type": ["object", "null"]},
}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_LIKELY = {"type": ["object", "null"], "additionalProperties": {"type": "number"}}
# The first token of a prompt that is echoed has null in two of the lists.
_COMPLETION_LOGPROBS = {
    "anyOf": [
        {"type": "null"},
        _object(
            {
                "tokens": _list(_TEXT),
                "token_logprobs": _list(_NUMBER_OR_NULL),
                "top_logprobs": _list(_LIKELY),
                "text_offset": _list(_COUNT),
            }
        ),
    ]
}
_MESSAGE = _object({"role": {"const": "assistant"}, "content": _TEXT})


def _generated(object_name: str, choice: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {
            "id": _TEXT,
            "object": {"const": object_name},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _list(_object(_CHOICE | choice, token_ids=_list(_COUNT))),
            "usage": _USAGE,
        },
        prompt_token_ids=_list(_COUNT),
        moonpool={"type": "object"},
    )


_MODEL = _object(
    {
        "id": _TEXT,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _TEXT,
        "max_model_len": _COUNT,
    }
)
_SECONDS = {"type": "number", "minimum": 0}
# Of losers, and where no decode instance is needed, there is null for what comes after token 0.
_PREDICTED = _object(
    dict.fromkeys(("queue_s", "load_s", "compute_s", "overhead_s", "ttft_s"), _SECONDS)
    | dict.fromkeys(("handoff_s", "tbt_s", "tbt_scale"), _NUMBER_OR_NULL)
)
_CANDIDATE = _object(
    {
        "prefill": _TEXT,
        "node": _TEXT,
        "local_blocks": _COUNT,
        "remote_blocks": _COUNT,
        "local_tokens": _COUNT,
        "remote_tokens": _COUNT,
        "predicted": _PREDICTED,
        "cost": _NUMBER_OR_NULL,
        "is_chosen": {"type": "boolean"},
        "reason": _TEXT,
    }
)
ANSWERS: dict[str, Any] = {
    "ChatCompletion": _generated("chat.completion", {"message": _MESSAGE}),
    "Completion": _generated("text_completion", {"text": _TEXT, "logprobs": _COMPLETION_LOGPROBS}),
    "Explanation": _object(
        {
            "object": {"const": "explanation"},
            "model": _TEXT,
            "prompt_tokens": _COUNT,
            "prompt_blocks": _COUNT,
            "max_tokens": _COUNT,
            "policy": _MAYBE_TEXT,
            "decode": _MAYBE_TEXT,
            "refusal": {"type": ["object", "null"]},
            "targets": {"type": ["object", "null"]},
            "candidates": _list(_CANDIDATE),
            "counts": {"type": "object", "additionalProperties": _COUNT},
        }
    ),
    "Tokens": _object(
        {
            "count": _COUNT,
            "max_model_len": {"type": ["integer", "null"]},
            "tokens": _list(_COUNT),
            "token_strs": {"type": ["array", "null"], "items": _TEXT},
        }
    ),
    "Text": _object({"prompt": _TEXT}),
    "Models": _object({"object": {"const": "list"}, "data": _list(_MODEL)}),
    "Model": _MODEL,
    "Bill": _object({"request_id": _TEXT, "predicted": {}, "real": {}, "reuse": {}}),
    "Status": _object({"status": _TEXT}),
}
