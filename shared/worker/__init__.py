"""The loops of a prefill or decode instance over the engine and the node's pool."""
