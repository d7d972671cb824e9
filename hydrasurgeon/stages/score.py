"""score: how much each head matters, written into the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import asked, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, single
from hydrasurgeon.checkpoints.writing import claim_checkpoint, claim_in_place, record_in_place, save
from hydrasurgeon.criteria import WITHOUT_DATA, score_key
from hydrasurgeon.criteria.circuits.state import clear_search
from hydrasurgeon.criteria.scoring import compute, counted
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import Manifest, Score, Step
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.run import Progress, is_main_process

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Parts

__all__ = ["Scored", "score"]


@dataclass(frozen=True)
class Scored:
    """What `score` found and where it was written."""

    path: Path
    manifest: Manifest
    method: str
    is_main: bool = True
    """False in the processes of torchrun that leave the writing to the first."""

    @property
    def result(self) -> Score:
        return self.manifest.scores[self.method]


@releases_claims
def score(
    checkpoint: str | Path,
    *,
    method: str,
    data: str | None = None,
    ood: Sequence[str] = (),
    objective: str | None = None,
    search: str | None = None,
    keep: int | str | None = None,
    remove: int | None = None,
    layers: str | None = None,
    tower: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | None = None,
    skip_bad: bool = False,
    arch: str | None = None,
    plot: str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Scored:
    """Score heads by a criterion and record the result in the checkpoint's manifest."""
    key = score_key(method, objective)
    heads_kept = counted(method, keep)
    if plot is not None and method != "cahp":
        raise UsageError(f"--plot: {method} has no curve to draw", hint="Use --method cahp.")
    picture = (
        None if plot is None else check_plot(Path(plot), force=force, inputs=[checkpoint, data])
    )
    opened = open_checkpoint(checkpoint, arch=arch)
    single(opened)
    if opened.hub_id is not None and out is None:
        raise UsageError(
            f"{opened.hub_id}: scores cannot be written into the hub's cache",
            hint="Give -o NAME.safetensors: a copy that carries them.",
        )
    target = None
    if out is not None:
        inputs = [checkpoint, data, ood, classes, template]
        target = claim_checkpoint(out, force=force, inputs=inputs)
    else:
        claim_in_place(opened.path)
        opened = open_checkpoint(checkpoint, arch=arch)  # another score may have ended just now
    names = None if method in WITHOUT_DATA else names_in(data)
    opened = with_class_names(opened, classes=classes, templates=template, names=names)
    digests = opened.digests()
    found, used = compute(
        opened, method=key, data=data, ood=ood, search=search, keep=heads_kept, remove=remove, layers=layers, tower=tower,
        limit=limit, seed=seed, device=device, dtype=dtype, batch_size=batch_size, skip_bad=skip_bad, progress=progress,
        output=target or opened.path,
    )  # fmt: skip
    arguments = {
        "method": key, "data": data, "ood": list(ood) or None, "search": search, "keep": keep, "remove": remove,
        "layers": layers, "tower": tower, **asked(classes, template), "limit": limit, "dtype": dtype,
        "batch_size": batch_size, "skip_bad": skip_bad, "arch": arch,
    }  # fmt: skip
    if picture is not None:
        from hydrasurgeon.criteria.cahp.plot import draw_cahp

        draw_cahp(found, picture)
    uses: tuple[str, ...] = (
        () if method in WITHOUT_DATA else ("torch", opened.manifest.model.family)
    )
    uses += ("scikit-learn", "kmedoids", "kneed") if method == "cahp" else ()
    record = opened.record(digests)
    entry = step("score", args=arguments, inputs=[record], data=used, seed=seed, uses=uses)

    def manifest(sha256: str) -> Manifest:
        base = opened.manifest
        return rewritten(
            base,
            weights_sha256=sha256,
            scores={**base.scores, key: found},
            # Scoring again by the same method replaces the entry: the weights do not depend on it.
            history=(*(s for s in base.history if not _same_scoring(s, key)), entry),
        )

    if not is_main_process():
        return Scored(target or opened.path, manifest(record.sha256), key, is_main=False)

    if target is not None:
        written = save(
            target,
            [_unchanged(opened, name, digests) for name in opened.tensors],
            manifest,
            files=opened.files,
        )
        clear_search(target, key)
        return Scored(target, written, key)
    written = manifest(record.sha256)
    record_in_place(opened.path, opened.tensors.files[0], written)
    clear_search(opened.path, key)
    return Scored(opened.path, written, key)


def _same_scoring(entry: Step, method: str) -> bool:
    return entry.command == "score" and entry.args.get("method") == method


def _unchanged(checkpoint: Checkpoint, name: str, digests: dict[str, str]) -> Planned:
    info = checkpoint.tensors[name]

    def produce() -> Parts:
        yield from checkpoint.tensors.blocks(name)
        return digests[name]

    return Planned(name, info.dtype, info.shape, produce)
