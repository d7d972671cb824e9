"""Errors that a user can meet, and the exit code of each.

    HydraError
    ├── CheckFailed        1   a check the user asked for found a difference
    ├── UsageError         2   options that make no sense together
    │   └── OutputError    2   the output exists, or cannot be written
    ├── CheckpointError    3   a checkpoint that cannot be read or identified
    │   └── ManifestError  3   a manifest that is damaged or belongs to other weights
    │       └── Disagreement   parts of a checkpoint that contradict each other (1 in verify)
    ├── SurgeryError       4   heads or members that cannot be cut or fused
    ├── DataError          5   data that cannot be read or does not suit the model
    └── MissingDependency  6   an optional package is not installed

Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence

# Characters of a message, besides the hint and the details.
MAX_MESSAGE = 2_000
PROBE = "hydrasurgeon finetune BODY --recipe probe --data TRAIN.csv -o probe"
"""Command that gives a model a classifier in a moment."""


class HydraWarning(UserWarning):
    """A note for users of Python on a result; the command line prints it as a note."""


class HydraError(Exception):
    """A user's mistake: `message` says what and where, `details` each of several, `hint` what to do
    next.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, details: Sequence[str] = ()
    ) -> None:
        if len(message) > MAX_MESSAGE:  # what comes from a file may be as long as a file
            half = MAX_MESSAGE // 2
            message = f"{message[:half]} … {message[-half:]}"
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)


def reason(error: Exception) -> str:
    """Return the first line of a library's error message, or the error's kind if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class CheckFailed(HydraError):
    exit_code = 1


class UsageError(HydraError):
    exit_code = 2


class OutputError(UsageError):
    pass


class CheckpointError(HydraError):
    exit_code = 3


class ManifestError(CheckpointError):
    pass


class Disagreement(ManifestError):
    pass


class SurgeryError(HydraError):
    exit_code = 4


class DataError(HydraError):
    exit_code = 5


class MissingDependency(HydraError):
    exit_code = 6
