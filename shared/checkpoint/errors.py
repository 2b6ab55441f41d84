"""Errors of reading a checkpoint. Each sentence names the key or file and what to do next."""


class CheckpointError(ValueError):
    """The model cannot be found, read or is of a kind that is not supported."""


class ChatTemplateError(CheckpointError):
    """The checkpoint has no chat template, or the template refused these messages."""
