"""Renders a chat to the prompt its model was trained on, in a sandbox. Never tokenises."""

from collections.abc import Sequence
from typing import Any

from shared.checkpoint.locate import ModelSource


class ChatTemplate:
    def render(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """Raises ChatTemplateError without a template or when it refuses the messages."""
        raise NotImplementedError(messages)


def load_chat_template(source: ModelSource) -> ChatTemplate:
    raise NotImplementedError(source)
