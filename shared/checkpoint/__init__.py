"""What a model checkpoint says without torch: where it is, its shape, tokenizer, chat template."""
