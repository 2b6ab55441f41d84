"""Numbers as a narrow table has room for them."""

KILO = 1_000.0


def plain(text: str) -> str:
    """Names and messages of others: a terminal obeys control codes."""
    return "".join(one if one.isprintable() else "?" for one in text)


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if value < 1:
        return f"{value * 1_000:.0f}ms" if value >= 0.01 else f"{value * 1_000:.1f}ms"
    return f"{value:.2f}s" if value < 100 else f"{value:.0f}s"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.0f} %"


def num_bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < KILO:
            return f"{value:.0f}{unit}" if unit == "B" or value >= 100 else f"{value:.1f}{unit}"
        value /= KILO
    return f"{value:.1f}TB"


def ago(span_s: float) -> str:
    whole = max(0, round(span_s))
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m" if whole < 3_600 else f"{whole // 3_600}h"
