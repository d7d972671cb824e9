"""The commands that show and prove what checkpoints are: inspect and verify."""

from __future__ import annotations

from typing import ClassVar

from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.base import CHECKPOINTS, PathLike, argument, option
from hydrasurgeon.options.shared import CHECKPOINT, Bare, Checkpoint


class InspectOptions(Bare):
    """Show what a checkpoint is: kind, architecture, kept heads, parameters, history."""

    conflicts: ClassVar = (("schema_", "checkpoint"), ("schema_", "commands"))

    checkpoint: PathLike | None = argument(
        reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT, default=None
    )
    commands: bool = option(
        False, help="Print its history as a shell script that makes the file again."
    )
    schema_: bool = option(
        False,
        flags=("--schema",),
        alias="schema",
        help="Instead of CKPT: print the JSON Schema of manifests.",
    )

    def needed(self) -> PathLike:
        """The checkpoint."""
        if self.checkpoint is None:
            raise UsageError("CKPT is required.", hint="Or give --schema.")
        return self.checkpoint


class VerifyOptions(Checkpoint, Bare):
    """Prove what can be proven about a checkpoint, and exit with 1 where something does not hold.

    Hashes, finite weights, members, code in a directory, the links of the history.
    """
