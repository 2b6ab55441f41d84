"""Fields of OpenAI's API that are not supported, and the values of them that mean nothing.

A client may send these values (its library often does); any other value is refused by name.
"""

from typing import Any

CHAT_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None,),
    "web_search_options": (None,),
    "store": (None, False),
    "metadata": (None, {}),
    "service_tier": (None, "auto", "default"),
    "prompt_cache_key": (None,),
    "safety_identifier": (None,),
}
COMPLETION_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
}
# What libraries add, above all when an assistant's answer is sent back as a message.
MESSAGE_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "type": (None, "text", "message"),
    "name": (None,),
    "refusal": (None,),
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "tool_calls": (None, []),
}


def without_defaults(
    fields: dict[str, Any], defaults: dict[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """`fields` without those in `defaults`; raises ValueError("<field>: …") for another value."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in defaults:
            kept[name] = value
        elif not any(_is_same(value, allowed) for allowed in defaults[name]):
            allowed = ", ".join(repr(one) for one in defaults[name] if one is not None)
            hint = f"leave it out or send {allowed}" if allowed else "leave it out"
            raise ValueError(f"{name}: this value is not supported by moonpool; {hint}")
    return kept


def _is_same(value: Any, allowed: Any) -> bool:
    """Equal and of one kind: True is not 1 here."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)
