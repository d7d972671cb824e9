"""prune: remove heads from a checkpoint; a file operation that loads the model only to repair it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import asked, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, single
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save, shard_size
from hydrasurgeon.criteria import WITHOUT_DATA, criterion, score_key
from hydrasurgeon.criteria.cahp.choice import select as select_by_cahp
from hydrasurgeon.criteria.circuits.state import clear_search
from hydrasurgeon.criteria.scoring import compute, counted
from hydrasurgeon.criteria.selection import kept_from_file, select
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import UNKNOWN, DataRecord, Input, Manifest, Score
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.heads import count
from hydrasurgeon.run import Progress
from hydrasurgeon.sharing.upload import destination, publish
from hydrasurgeon.surgery.compensate import check_compensation, repaired_tensors
from hydrasurgeon.surgery.cut import plan_pruning

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

__all__ = ["Pruned", "prune"]


@dataclass(frozen=True)
class Pruned:
    path: Path
    manifest: Manifest
    removed: int
    notes: tuple[str, ...] = ()
    hub: str | None = None
    """Where on the hub it was uploaded to."""


@releases_claims
def prune(
    checkpoint: str | Path,
    *,
    method: str | None = None,
    objective: str | None = None,
    keep: int | str | None = None,
    remove: int | None = None,
    sample: str | None = None,
    mask: str | Path | None = None,
    layers: str | None = None,
    tower: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    data: str | None = None,
    ood: Sequence[str] = (),
    search: str | None = None,
    compensate: str = "none",
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | None = None,
    skip_bad: bool = False,
    arch: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    max_shard_size: str | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    progress: Progress | None = None,
) -> Pruned:
    """Write a member: the checkpoint without the heads that matter least."""
    amounts = {"--keep": keep, "--remove": remove, "--sample": sample, "--mask": mask}
    given = [name for name, value in amounts.items() if value is not None]
    if len(given) != 1:
        wrong = f"{' and '.join(given)} together" if given else "no number of heads"
        raise UsageError(
            f"prune: {wrong}", hint="Give one of --keep K, --remove N, --sample N/P, --mask FILE."
        )
    repository = destination(push_to_hub, private=private)
    heads_kept = counted(method, keep)
    check_compensation(compensate, data)
    repairs = compensate != "none"
    opened = open_checkpoint(checkpoint, arch=arch)
    _, present = single(opened)
    needed = data is not None and method is not None and method not in WITHOUT_DATA
    opened = with_class_names(
        opened, classes=classes, templates=template, names=names_in(data) if needed else None
    )
    notes: list[str] = [opened.note] if opened.note else []
    used: tuple[DataRecord, ...] = ()
    if method is not None:
        method = score_key(method, objective, recorded=opened.manifest.scores)
    label = method or "mask"
    scores = dict(opened.manifest.scores)
    default = _default_name(opened.home, label, keep, remove, sample, seed, compensate, tower)
    target = claim_checkpoint(
        out if out is not None else default, force=force,
        inputs=[checkpoint, mask, data, ood, classes, template],
    )  # fmt: skip
    shard = shard_size(max_shard_size, target)
    runs = {
        "data": data, "limit": limit, "seed": seed, "device": device, "dtype": dtype, "batch_size": batch_size,
        "skip_bad": skip_bad, "progress": progress,
    }  # fmt: skip
    if mask is not None:
        kept = kept_from_file(Path(mask), opened.manifest)
    else:
        score, used = _score(
            opened, method=method, keep=heads_kept, layers=layers, tower=tower, only_recorded=repairs, ood=ood, search=search,
            remove=_needed(remove, sample), output=target, **runs,  # type: ignore[arg-type]
        )  # fmt: skip
        assert method is not None
        scores[method] = score
        notes += score.settings.get("notes", ())
        decided = score.settings.get("keep")
        if keep is not None and decided not in (None, keep):
            notes.append(
                f"the {method} scores were computed layer by layer for --keep {decided}, not {keep}"
            )
        if method == "cahp":
            if keep == "auto" and not score.settings.get("knee"):
                notes.append(
                    "cahp's curve has no knee: its highest point gives the number of heads"
                )
            kept = select_by_cahp(
                opened.manifest, score, keep=keep, remove=remove, layers=layers, tower=tower
            )
        else:
            kept = select(
                opened.manifest,
                score,
                keep=heads_kept,
                remove=remove,
                sample=sample,
                layers=layers,
                tower=tower,
                seed=seed,
            )
    repaired: dict[str, Raw] = {}
    if repairs:
        repaired, calibration = repaired_tensors(opened, kept, how=compensate, **runs)  # type: ignore[arg-type]
        used = tuple(dict.fromkeys((*used, calibration)))
    arguments = {
        "method": method, "keep": keep, "remove": remove, "sample": sample, "layers": layers, "tower": tower,
        **asked(classes, template), "data": data, "ood": list(ood) or None, "search": search,
        "compensate": compensate if repairs else None, "limit": limit, "mask": mask and Path(mask), "arch": arch,
        # Only where they are not the default: whoever repeats the command must know.
        "dtype": dtype if dtype != "float32" else None, "batch_size": batch_size, "skip_bad": skip_bad,
    }  # fmt: skip
    inputs: dict[str, str] = {}

    def manifest(sha256: str) -> Manifest:
        source = weights_sha256(opened.tensors, inputs) if sha256 != UNKNOWN else UNKNOWN
        if sha256 != UNKNOWN:
            opened.check(
                inputs
            )  # every byte has passed by now: refuse before anything takes its place
        entry = step(
            "prune",
            args=arguments,
            inputs=[Input(name=opened.name, sha256=source)],
            data=used,
            seed=seed,
            uses=("torch", opened.manifest.model.family) if repairs else (),
        )
        history = (*opened.manifest.history, entry)
        return rewritten(
            opened.manifest,
            kind="member",
            kept=kept,
            scores=scores,
            weights_sha256=sha256,
            history=history,
        )

    written = save(
        target,
        plan_pruning(opened, kept, inputs, repaired),
        manifest,
        files=opened.files,
        shard=shard,
    )
    clear_search(target, label)
    hub = publish(target, written, opened.files, at=repository, bars=progress is not None)
    return Pruned(target, written, count(present) - count(kept), tuple(notes), hub)


def _score(
    opened: Checkpoint,
    *,
    method: str | None,
    data: str | None,
    only_recorded: bool,
    **options: object,
) -> tuple[Score, tuple[DataRecord, ...]]:
    """Recorded scores, or new ones where there is data; data that calibrates a repair replaces no record."""
    if method is None:
        raise UsageError("prune: by which criterion?", hint="Give --method taylor, or --mask FILE.")
    recorded = opened.manifest.scores.get(method)
    if recorded is None:
        criterion(method)  # a misspelt name is the first thing to say
    if recorded is not None and (data is None or only_recorded):
        return recorded, ()
    if data is None and method not in WITHOUT_DATA:
        name = opened.path.name
        needs = "--data D --ood O" if method in ("circuit-ood", "circuit-avg") else "--data D"
        raise UsageError(
            f"{opened.path}: has no {method} scores",
            hint=f"Run `hydrasurgeon score --method {method} {needs} {name}` first, or give {needs} here.",
        )
    return compute(opened, method=method, data=data, **options)  # type: ignore[arg-type]


def _needed(remove: int | None, sample: str | None) -> int | None:
    """How long a removal order must be to remove, or to draw from, so many."""
    pool = sample.partition("/")[2] if sample is not None else ""
    return int(pool) if pool.isdigit() else remove


def _default_name(
    path: Path,
    label: str,
    keep: int | str | None,
    remove: int | None,
    sample: str | None,
    seed: int,
    compensate: str,
    tower: str | None,
) -> Path:
    """`vit-taylor-k8.safetensors` beside the input."""
    stem = path.name.removesuffix(".safetensors")
    amount = (
        f"-{keep}"
        if keep == "auto"
        else f"-k{keep}"
        if keep is not None
        else f"-r{remove}"
        if remove is not None
        else ""
    )
    if sample is not None:
        amount = f"-s{sample.replace('/', 'of')}-seed{seed}"
    repair = f"-{compensate}" if compensate != "none" else ""
    where = f"-{tower}" if tower not in (None, "both") else ""
    return path.with_name(f"{stem}-{label}{where}{amount}{repair}.safetensors")
