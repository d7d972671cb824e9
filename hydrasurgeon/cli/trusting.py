"""The commands for those who did not make a checkpoint themselves: is it what it says?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydrasurgeon.cli import options, shared
from hydrasurgeon.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checks import Check


def verify(
    checkpoint: options.Checkpoint,
    *,
    parents: Annotated[
        Path | None,
        typer.Option(
            "--parents",
            metavar="DIR",
            help="Compare it with what it was made from: files of this folder, found by hash.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="D", help="With --parents: compare outputs on this, not random inputs."),
    ] = None,
    signature: Annotated[
        Path | None, typer.Option("--signature", metavar="SIG", help="Check this signature, made by `sign`.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", metavar="F", help="With --signature: the signer's key, PEM.")
    ] = None,
    arch: options.Arch = None,
    run: shared.ProofOptions,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Prove what can be proven about a checkpoint; exit 1 when something does not hold.

    Without --parents: hashes, finite weights, members, the links of the history. With it: that pruned is the
    masked parent and fused is the members, bit for bit and by their outputs.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.verify import verify as stage

    result = stage(checkpoint, parents=parents, data=data, signature=signature, public_key=public_key, arch=arch, **run)
    render.verified(result, json=json, quiet=quiet)
    _must_hold(str(result.path), result.checks)


def _must_hold(path: str, checks: Sequence[Check]) -> None:
    broken = [check for check in checks if check.holds is False]
    if broken:
        raise CheckFailed(
            f"{path}: {broken[0].name} does not hold ({broken[0].detail})"
            + (f", nor do {len(broken) - 1} more" if len(broken) > 1 else ""),
            hint="Do not rely on it before you know why.",
        )


def replay(
    checkpoint: options.Checkpoint,
    folder: Annotated[
        Path,
        typer.Option(
            "--from", metavar="DIR", help="Where the backbone (found by its hash), data, recipes and masks lie."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Keep the files on the way in this new folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look for all files, show the commands, run nothing.")
    ] = False,
    shell: Annotated[bool, typer.Option("--shell", help="With --dry-run: print a shell script that does it.")] = False,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Read models and data on the hub that the history names, too.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="T", help="Largest difference of a weight to accept.")
    ] = 0.0,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Run a checkpoint's whole history again and compare hash by hash; exit 1 when it comes out otherwise.

    The same versions on the same processor give the same bytes; else the largest difference is reported.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.replay import replay as stage

    if shell and not dry_run:
        raise UsageError("--shell: runs nothing", hint="Give --dry-run --shell.")
    with render.progress(quiet) as tick:
        result = stage(
            checkpoint,
            folder=folder,
            out=out,
            dry_run=dry_run,
            fetch=fetch,
            tolerance=tolerance,
            device=device,
            progress=tick,
        )
    render.replayed(result, shell=shell, json=json, quiet=quiet)
    _must_hold(str(result.path), result.checks)


def sign(
    checkpoint: options.Checkpoint,
    key: Annotated[
        Path, typer.Option("--key", metavar="F", help="The private key: elliptic curve, PEM, not encrypted.")
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="SIG", help="The signature; else CKPT.sig beside it.")
    ] = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Sign a checkpoint's files: weights, manifest and, in a directory, everything in it.

    Needs OpenSSF model-signing. `verify CKPT --signature SIG --public-key F` checks it.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.sign import sign as stage

    render.signed(stage(checkpoint, key=key, out=out, force=force), json=json, quiet=quiet)


def bom(
    checkpoint: options.Checkpoint,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="F", help="The .json file; else it goes to stdout.")
    ] = None,
    arch: options.Arch = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a CycloneDX bill of materials: files, ancestors, data and packages, each with its hash or version."""
    from hydrasurgeon import render
    from hydrasurgeon.stages.bom import bom as stage

    render.billed(stage(checkpoint, out=out, arch=arch, force=force), quiet=quiet)
