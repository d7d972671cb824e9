"""The commands that show and prove what checkpoints are: inspect, verify and, its old name, replay."""

from __future__ import annotations

from typing import ClassVar, Literal

from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.base import (
    CHECKPOINTS,
    READ,
    RUNS,
    UNLABELLED,
    WRITTEN,
    Options,
    PathLike,
    argument,
    option,
)
from hydrasurgeon.options.shared import CHECKPOINT, Bare, Checkpoint, Progress, Run


class InspectOptions(Bare):
    """Show what a checkpoint is, or how alike the heads of two are.

    Of one: kind, architecture, kept heads, parameters, history. Of two: overlap by layer and in
    all, and the Jensen–Shannon divergence.
    """

    conflicts: ClassVar = (("schema_", "checkpoint"),)

    checkpoint: PathLike | None = argument(
        reads=CHECKPOINTS, metavar="CKPT", help=CHECKPOINT, default=None
    )
    other: PathLike | None = argument(
        reads=CHECKPOINTS,
        metavar="OTHER",
        help="Another of the same architecture: a checkpoint, a hydra's member (FILE#0) or a "
        "manifest.",
        default=None,
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


class Again(Options):
    """How a history runs again."""

    requires: ClassVar = {"shell": ("dry_run",)}

    fetch: bool = option(
        False, group=READ, help="Read models and data on the hub that the history names, too."
    )
    tolerance: float = option(0.0, metavar="T", help="Largest difference of a weight to accept.")
    dry_run: bool = option(
        False, group=RUNS, help="Look for all files, show the commands, run nothing."
    )
    shell: bool = option(
        False, group=RUNS, help="With --dry-run: print a shell script that does it."
    )
    out: PathLike | None = option(
        None,
        flags=("-o", "--out"),
        metavar="DIR",
        group=WRITTEN,
        help="Keep the files on the way in this new folder.",
    )


class VerifyOptions(Checkpoint, Bare, Run, Again):
    """Prove what can be proven about a checkpoint, and exit with 1 where something does not hold.

    By itself: hashes, finite weights, members, the links of the history. With --parents: that its
    model is that of its parents, that pruned is the masked parent and fused is the members, bit for
    bit and by their outputs. With --again: its whole history runs again, and hashes are compared.
    """

    requires: ClassVar = {
        "data": ("parents",),
        "public_key": ("signature",),
        "signature": ("public_key",),
        **dict.fromkeys(("fetch", "tolerance", "dry_run", "out"), ("again",)),
    }

    parents: PathLike | None = option(
        None,
        metavar="DIR",
        group=READ,
        help="Compare it with what it was made from: files of this folder, by hash.",
    )
    again: PathLike | None = option(
        None,
        metavar="DIR",
        group=READ,
        help="Run its history again: the backbone (found by its hash), data, recipes and masks lie "
        "in this folder.",
    )
    data: str | None = option(
        None,
        metavar="D",
        group=UNLABELLED,
        help="With --parents: compare outputs on this, not random inputs.",
    )
    signature: PathLike | None = option(
        None, metavar="SIG", group=READ, help="Check this signature by OpenSSF model-signing."
    )
    public_key: PathLike | None = option(
        None, metavar="F", group=READ, help="With --signature: the signer's key, PEM."
    )
    dtype: Literal["float64", "float32"] = option(
        "float64", group=RUNS, help="float64 or float32: what outputs are compared in."
    )


class ReplayOptions(Checkpoint, Again):
    """Run a checkpoint's whole history again: the old name of verify --again."""

    folder: PathLike = option(
        flags=("--from",),
        metavar="DIR",
        group=READ,
        help="Where the backbone (found by its hash), data, recipes and masks lie.",
    )
    device: str = option("auto", metavar="auto|cpu|cuda", group=RUNS, help="Where models run.")
    progress: Progress | None = None
