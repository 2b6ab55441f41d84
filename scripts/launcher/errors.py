"""What can go wrong with a cluster on this machine, in words for its user."""


class LaunchError(Exception):
    """The cluster cannot start or go on; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
