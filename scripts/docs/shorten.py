"""Long values in examples: the beginning, and how much was left away."""

from typing import Any

MAX_TEXT = 44
MAX_ITEMS = 2
MAX_NUMBERS = 8


def shorten(value: Any) -> Any:
    """The same with long texts and lists cut; nothing else is changed."""
    match value:
        case str():
            return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 20] + "…"
        case list():
            limit = MAX_NUMBERS if all(isinstance(one, int | float) for one in value) else MAX_ITEMS
            kept = [shorten(one) for one in value[:limit]]
            return kept if len(value) <= limit else [*kept, f"… {len(value) - limit} more"]
        case dict():
            return {name: shorten(one) for name, one in value.items()}
        case float():
            return round(value, 6)
        case _:
            return value
