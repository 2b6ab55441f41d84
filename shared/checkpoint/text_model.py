"""All of a model that a gateway needs: shape, tokenizer, chat template. No weights, no torch."""

from dataclasses import dataclass

from shared.checkpoint.chat_template import ChatTemplate, load_chat_template
from shared.checkpoint.locate import ModelSource, locate
from shared.checkpoint.model_config import ModelConfig, load_model_config
from shared.checkpoint.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    source: ModelSource
    config: ModelConfig
    tokenizer: TextTokenizer
    chat_template: ChatTemplate


def load_text_model(model: str) -> TextModel:
    source = locate(model)
    tokenizer = load_tokenizer(source)
    return TextModel(
        source=source,
        config=load_model_config(source),
        tokenizer=tokenizer,
        chat_template=load_chat_template(source, tokenizer),
    )
