"""The main of a measuring process: `python peer_lines.py MODULE.py SETTINGS`, stdlib only.

MODULE has `load(settings) -> (description, operations)`. One JSON object per line: the first
answer holds the description, then each request {"op", "arguments"} gets one answer. It runs in
other projects' environments as well, hence it imports nothing of moonpool. Ends with its stdin.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Operations = Mapping[str, Callable[..., Any]]


def take_stdout() -> TextIO:
    """The stream of answers. Whatever libraries print goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def load_module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("peer", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = module
    spec.loader.exec_module(module)
    return module


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """The answer to one request; any error of the measured library becomes a sentence."""
    try:
        return {"ok": True, "result": work()}
    except Exception as error:  # noqa: BLE001  (the other side decides)
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def call(operations: Operations, request: Any) -> Any:
    return operations[request["op"]](**request.get("arguments", {}))


def main(module_path: str, settings: str) -> None:
    answers = take_stdout()

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    operations: Operations = {}

    def load() -> Any:
        nonlocal operations
        description, operations = load_module(module_path).load(json.loads(settings))
        return description

    loaded = attempt(load)
    send(loaded)
    if not loaded["ok"]:
        raise SystemExit(1)
    for line in sys.stdin:
        send(attempt(lambda line=line: call(operations, json.loads(line))))  # type: ignore[misc]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
