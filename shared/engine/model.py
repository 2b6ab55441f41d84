"""The Llama-shaped decoder, one layer at a time. Keeps no sequence state and no KV."""

from shared.checkpoint.model_config import ModelConfig


class LlamaModel:
    config: ModelConfig
