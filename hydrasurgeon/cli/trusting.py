"""The commands for those who did not make a checkpoint themselves: is it what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydrasurgeon.cli import options
from hydrasurgeon.errors import CheckFailed

__all__ = ["sign", "verify"]


def verify(
    checkpoint: options.Checkpoint,
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
        typer.Option(
            "--data",
            metavar="D",
            help="With --parents: compare outputs on this, not random inputs.",
        ),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option("--signature", metavar="SIG", help="Check this signature, made by `sign`."),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", metavar="F", help="With --signature: the signer's key, PEM."),
    ] = None,
    arch: options.Arch = None,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", help="float64 or float32: what outputs are compared in.")
    ] = "float64",
    batch_size: options.Batch = "auto",
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Prove what can be proven about a checkpoint; exit 1 when something does not hold.

    Without --parents: hashes, finite weights, members, the links of the history. With it: that pruned is the
    masked parent and fused is the members, bit for bit and by their outputs.
    """
    from hydrasurgeon import render
    from hydrasurgeon.stages.verify import verify as stage

    result = stage(
        checkpoint, parents=parents, data=data, signature=signature, public_key=public_key, limit=limit, seed=seed,
        device=device, dtype=dtype, batch_size=options.batch(batch_size), arch=arch,
    )  # fmt: skip
    render.verified(result, json=json, quiet=quiet)
    if not result.holds:
        broken = [check for check in result.checks if check.holds is False]
        raise CheckFailed(
            f"{result.path}: {broken[0].name} does not hold ({broken[0].detail})"
            + (f", nor do {len(broken) - 1} other checks" if len(broken) > 1 else ""),
            hint="Do not use it before you know why.",
        )


def sign(
    checkpoint: options.Checkpoint,
    key: Annotated[
        Path,
        typer.Option(
            "--key", metavar="F", help="The private key: elliptic curve, PEM, not encrypted."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="SIG", help="The signature; else CKPT.sig beside it."),
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
