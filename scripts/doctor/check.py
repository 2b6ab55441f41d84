"""One finding of `moonpool doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """What was found; `problem` says what to do, empty when all is well."""

    name: str
    found: str
    problem: str = ""
