"""The commands for those who did not make a checkpoint themselves: verify, replay."""

from __future__ import annotations

from typing import ClassVar, Literal

from hydrasurgeon.options.base import READ, RUNS, UNLABELLED, WRITTEN, PathLike, option
from hydrasurgeon.options.shared import Bare, Checkpoint, Progress, Run


class VerifyOptions(Checkpoint, Bare, Run):
    """Prove what can be proven about a checkpoint, and exit with 1 where something does not hold.

    Without --parents: hashes, finite weights, members, the links of the history. With it: that pruned is the
    masked parent and fused is the members, bit for bit and by their outputs.
    """

    requires: ClassVar = {"data": ("parents",), "public_key": ("signature",), "signature": ("public_key",)}

    parents: PathLike | None = option(
        None, metavar="DIR", group=READ, help="Compare it with what it was made from: files of this folder, by hash."
    )
    data: str | None = option(
        None, metavar="D", group=UNLABELLED, help="With --parents: compare outputs on this, not random inputs."
    )
    signature: PathLike | None = option(
        None, metavar="SIG", group=READ, help="Check this signature by OpenSSF model-signing."
    )
    public_key: PathLike | None = option(None, metavar="F", group=READ, help="With --signature: the signer's key, PEM.")
    dtype: Literal["float64", "float32"] = option(
        "float64", group=RUNS, help="float64 or float32: what outputs are compared in."
    )


class ReplayOptions(Checkpoint):
    """Run a checkpoint's whole history again, compare hash by hash, and exit with 1 where they differ.

    The same versions on the same processor give the same bytes; else the largest difference is reported.
    """

    requires: ClassVar = {"shell": ("dry_run",)}

    folder: PathLike = option(
        flags=("--from",),
        metavar="DIR",
        group=READ,
        help="Where the backbone (found by its hash), data, recipes and masks lie.",
    )
    fetch: bool = option(False, group=READ, help="Read models and data on the hub that the history names, too.")
    tolerance: float = option(0.0, metavar="T", help="Largest difference of a weight to accept.")
    dry_run: bool = option(False, group=RUNS, help="Look for all files, show the commands, run nothing.")
    shell: bool = option(False, group=RUNS, help="With --dry-run: print a shell script that does it.")
    device: str = option("auto", metavar="auto|cpu|cuda", group=RUNS, help="Where models run.")
    progress: Progress | None = None
    out: PathLike | None = option(
        None, flags=("-o", "--out"), metavar="DIR", group=WRITTEN, help="Keep the files on the way in this new folder."
    )
