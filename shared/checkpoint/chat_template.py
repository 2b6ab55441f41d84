"""Renders a chat to the prompt its model was trained on, in a sandbox. Never tokenises."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.checkpoint.errors import ChatTemplateError
from shared.checkpoint.gguf_file import read_gguf
from shared.checkpoint.locate import ModelSource
from shared.checkpoint.model_config import read_json
from shared.checkpoint.tokenizer import TextTokenizer

_DUMMY_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

# What messages of another shape than the template expects can raise in it.
_RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class _GenerationMark(Extension):
    """`{% generation %}`: what the model said. Training needs the mark, a prompt does not."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A checkpoint's template, in the environment that model authors write for."""

    def __init__(self, model: str, template: str | None, variables: Mapping[str, str]) -> None:
        self._model = model
        self._variables = dict(variables)
        # trim_blocks and lstrip_blocks are what published templates count on.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMark, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = None if template is None else environment.from_string(template)
        except TemplateError as error:
            raise ChatTemplateError(f"{model}: chat template is not valid: {error}") from error

        self._globals = {} if self._template is None else dict(self._template.globals)

    @property
    def is_present(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """Raises ChatTemplateError without a template or when it refuses the messages."""
        if self._template is None:
            raise ChatTemplateError(
                f"{self._model} has no chat template; send the prompt to /v1/completions"
            )
        variables = {
            **self._globals,
            **self._variables,
            "messages": list(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            # As its `render` does, which gathers the globals anew each time.
            context = self._template.new_context(variables, shared=True)
            return "".join(self._template.root_render_func(context))
        except _RENDER_ERRORS as error:
            raise ChatTemplateError(f"messages: the chat template refused them: {error}") from error


def load_chat_template(source: ModelSource, tokenizer: TextTokenizer) -> ChatTemplate:
    match source.kind:
        case "dummy":
            template: str | None = _DUMMY_TEMPLATE
            variables = {}
        case "gguf":
            template = read_gguf(source.file_path).metadata.get("tokenizer.chat_template")
            variables = {
                name: token
                for name, token in (
                    ("bos_token", tokenizer.bos_token),
                    ("eos_token", tokenizer.eos_token),
                )
                if token is not None
            }
        case "hf":
            template, variables = _from_hf(source.file_path)
    return ChatTemplate(source.name, template, variables)


def _from_hf(folder: Path) -> tuple[str | None, dict[str, str]]:
    config_path = folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    variables = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            variables[name] = token
    template_path = folder / "chat_template.jinja"
    if template_path.is_file():
        return template_path.read_text(encoding="utf-8"), variables
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template, variables


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
