"""docs/nats.md as a text: from the list of subjects, the schemas and given outputs. Asks nobody."""

import inspect
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from scripts.docs.entries import Entry
from scripts.docs.sample import NAMES
from scripts.docs.subject_list import ENTRIES, FAMILIES
from shared.messages import subjects
from shared.messages.access import ACCESS, covers
from shared.messages.envelope import Message

MICRO = {
    subjects.MICRO_PING: "nats micro ping",
    f"{subjects.MICRO_INFO}.moonpool-transfer": "nats micro info moonpool-transfer",
    f"{subjects.MICRO_STATS}.moonpool-gateway": "nats micro stats moonpool-gateway",
}
"""The examples of NATS' own service protocol, and the CLI's commands for them."""
_BLOCK = re.compile(r"^```\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
HEAD = """# NATS: every subject

All of moonpool's control plane can be looked at with the
[nats CLI](https://github.com/nats-io/natscli). `moonpool up` prints the line that selects its
context; the operator's user may send and hear everything. Every service is a NATS micro service, as
`nats micro ls` shows.

A payload that starts with `{` is JSON and is answered in JSON; services themselves speak msgpack.
Bytes are base64 in JSON. Unknown fields are ignored, a wrong one is named:

"""
AFTER_ERROR = """
The headers `Nats-Service-Error` and `Nats-Service-Error-Code` say the same; the code there is the
number that the gateway uses over HTTP.

What is shown came from a cluster of two nodes of `dummy:tiny`, made by `python -P -m scripts.docs`;
`…` stands for what was cut. It is what is on the wire: the payload of an answer, or, where no
command is of use to anybody but the services, a message between them (and the answer to it),
decoded from msgpack. The line with `nats` shows how to ask, or to listen, yourself.

"""


def render(outputs: Mapping[str, str]) -> str:
    """The whole page; `outputs` by the first subject of an entry, "error" and those of MICRO."""
    parts = [HEAD, _block("error", outputs), AFTER_ERROR, _contents(), _micro(outputs)]
    for family in FAMILIES:
        parts.append(f"## {family.title}\n\n" + (f"{family.text}\n\n" if family.text else ""))
        parts += [_entry(entry, outputs) for entry in family.entries]
    parts.append(_messages())
    return "".join(parts).rstrip("\n") + "\n"


def outputs_of(page: str) -> dict[str, str]:
    """What `render` was given, read back from a page."""
    keys = ["error", *MICRO, *(entry.subjects[0] for entry in ENTRIES)]
    blocks = [found.group(1) for found in _BLOCK.finditer(page)]
    return dict(zip(keys, blocks, strict=False))


def subjects_in(page: str) -> set[str]:
    """The subjects in its headings, with * for a name."""
    headings = [line for line in page.splitlines() if line.startswith("### `moonpool.")]
    found = {name for line in headings for name in re.findall(r"`([^`]+)`", line)}
    return {re.sub(r"<[^>]+>", "*", name) for name in found}


def example_subject(entry: Entry) -> str:
    """The first subject of an entry with the names of the example's cluster."""
    return re.sub(r"<([^>]+)>", lambda found: NAMES.get(found[1], "*"), entry.subjects[0])


def _block(key: str, outputs: Mapping[str, str]) -> str:
    return f"```\n{outputs.get(key, '')}```\n"


def _contents() -> str:
    lines = [
        "| subject | sent by | heard by | message | answer |",
        "|---|---|---|---|---|",
    ]
    for entry in ENTRIES:
        for subject in entry.subjects:
            senders, hearers = users_of(subject)
            reply = "" if entry.reply is None else f"`{entry.reply.__name__}`"
            lines.append(
                f"| `{subject}` | {senders} | {hearers} | `{entry.message.__name__}` | {reply} |"
            )
    return (
        "\n".join(lines)
        + "\n\nThe operator may send and hear all of them. `moonpool.bench.bare` is not on a"
        " cluster: `moonpool bench index` uses it, on a NATS of its own, for what a request costs."
        " Answers go to `_INBOX.<service>.>`, which only that service may listen to.\n\n"
    )


def users_of(subject: str) -> tuple[str, str]:
    """Services that may send it and hear it; the operator where it is nobody else."""
    pattern = re.sub(r"<[^>]+>", "*", subject)

    def those(kind: str) -> str:
        names = [
            name
            for name, access in ACCESS.items()
            if any(covers(allowed, pattern) for allowed in getattr(access, kind))
        ]
        return ", ".join(names) or "operator"

    return those("publish"), those("subscribe")


def _micro(outputs: Mapping[str, str]) -> str:
    text = (
        "## NATS' own service protocol\n\n"
        "Answered by every process, with its role, id, incarnation and, where it has one, node and "
        "model in the metadata. A process that attaches to another pool, or changes its role, is "
        "another incarnation and another micro service.\n\n"
    )
    for subject, command in MICRO.items():
        text += f"`{command}` asks `{subject}`:\n\n{_block(subject, outputs)}\n"
    return text


def _entry(entry: Entry, outputs: Mapping[str, str]) -> str:
    heading = ", ".join(f"`{subject}`" for subject in entry.subjects)
    link = f"[`{entry.message.__name__}`](#{entry.message.__name__.lower()})"
    if entry.reply is None:
        how = f"Plain: {link}."
    else:
        reply = entry.reply.__name__
        how = f"{link} → [`{reply}`](#{reply.lower()})."
    return f"### {heading}\n\n{entry.text} {how}\n\n{_block(entry.subjects[0], outputs)}\n"


# --- schemas -----------------------------------------------------------------------------------
def _messages() -> str:
    found: dict[str, type[BaseModel]] = {}
    for entry in ENTRIES:
        for one in (entry.message, entry.reply):
            if one is not None:
                _gather(one, found)
    text = "## Messages\n\nFields without a default must be given.\n\n"
    return text + "".join(_schema(found[name]) for name in sorted(found))


def _gather(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> None:
    if model.__name__ in found:
        return
    found[model.__name__] = model
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            _gather(inner, found)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _schema(model: type[BaseModel]) -> str:
    said = (model.__doc__ or "").strip()
    is_own = said and said not in ((Message.__doc__ or "").strip(),)
    text = f"### {model.__name__}\n\n" + (f"{inspect.cleandoc(said)}\n\n" if is_own else "")
    fields = [
        f"- `{name}`: {_type_name(field.annotation)}{_default_of(field)}"
        for name, field in model.model_fields.items()
        if name != "v"
    ]
    return text + ("\n".join(fields) or "No fields.") + "\n\n"


def _default_of(field: Any) -> str:
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        return ", default: all of its own"
    return f", default `{default!r}`"


def _type_name(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (Union, UnionType):
        return " or ".join(_type_name(one) for one in inner)
    if annotation is NoneType:
        return "null"
    if origin is list:
        return f"list of {_type_name(inner[0])}"
    if origin is dict:
        return f"map to {_type_name(inner[1])}"
    if origin is tuple:
        return f"({', '.join(_type_name(one) for one in inner)})"
    if inner:  # Annotated
        return _type_name(inner[0])
    if annotation is Any:
        return "anything"
    if issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(
        str(annotation.__name__), str(annotation.__name__)
    )
