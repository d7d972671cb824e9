"""score: how much each head matters, written into the manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.class_names import asked, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint, rewritten, single
from hydrasurgeon.checkpoints.writing import output_path, save, write_text
from hydrasurgeon.criteria import CIRCUIT, WITHOUT_DATA, criterion, score_key
from hydrasurgeon.criteria.base import CircuitOptions, HeadScores, Removal, Subject, Verdict
from hydrasurgeon.criteria.circuits.state import state_path
from hydrasurgeon.criteria.feed import Feed, NoData
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.open_clip.zero_shot import record_of
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import DataRecord, Manifest, Score, Step, sidecar
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.heads import parse_layers, parse_towers
from hydrasurgeon.run import Progress

__all__ = ["Scored", "compute", "counted", "score"]


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
    picture = None if plot is None else check_plot(Path(plot), force=force)
    opened = open_checkpoint(checkpoint, arch=arch)
    single(opened)
    names = None if method in WITHOUT_DATA else names_in(data)
    opened = with_class_names(opened, classes=classes, templates=template, names=names)
    if opened.hub_id is not None and out is None:
        raise UsageError(
            f"{opened.hub_id}: scores cannot be written into the hub's cache",
            hint="Give -o NAME.safetensors: a copy that carries them.",
        )
    target = None if out is None else output_path(out, force=force)
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

    if not _is_main():
        return Scored(target or opened.path, manifest(record.sha256), key, is_main=False)

    if target is None and opened.recorded:
        target = opened.path
    if target is not None:
        written = save(
            target,
            [_unchanged(opened, name, digests) for name in opened.tensors],
            manifest,
            files=opened.files,
        )
        clear_search(target, key)
        return Scored(target, written, key)
    # A bare file of the user's own is left as it is: only the sidecar appears beside it.
    written = manifest(record.sha256)
    beside = opened.path / "heads.json" if opened.path.is_dir() else sidecar(opened.path)
    write_text(beside, written.to_json())
    clear_search(opened.path, key)
    return Scored(opened.path, written, key)


def _is_main() -> bool:
    """Whether this process writes: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def clear_search(output: Path, key: str) -> None:
    """What an interrupted search left is of no use once the order is written."""
    state_path(output, key).unlink(missing_ok=True)


def counted(method: str | None, keep: int | str | None) -> int | None:
    """`--keep` as a number; None for CAHP's own."""
    if isinstance(keep, str):
        if keep != "auto":
            raise UsageError(f"--keep {keep}: neither a number nor auto")
        if method != "cahp":
            raise UsageError(
                f"--keep auto: {method or 'a mask'} has no number of heads of its own",
                hint="Give a number, or --method cahp.",
            )
        return None
    return keep


def _same_scoring(entry: Step, method: str) -> bool:
    return entry.command == "score" and entry.args.get("method") == method


def _unchanged(checkpoint: Checkpoint, name: str, digests: dict[str, str]) -> Planned:
    info = checkpoint.tensors[name]
    return Planned(
        name, info.dtype, info.shape, lambda: (checkpoint.tensors.read(name), digests[name])
    )


def compute(
    checkpoint: Checkpoint,
    *,
    method: str,
    data: str | None,
    ood: Sequence[str] = (),
    search: str | None = None,
    remove: int | None = None,
    output: Path | None = None,
    keep: int | None,
    layers: str | None,
    tower: str | None,
    limit: int | None,
    seed: int,
    device: str,
    dtype: str,
    batch_size: int | None,
    skip_bad: bool,
    progress: Progress | None,
) -> tuple[Score, tuple[DataRecord, ...]]:
    """Scores of all heads present, and the data they were computed on; `method` is the score's key."""
    judge = criterion(method)
    objective = _objective(method, ood, search)
    model = checkpoint.manifest.model
    towers = parse_towers(tower, checkpoint.manifest.towers)
    sizes = [checkpoint.manifest.towers[name] for name in towers]
    most = max(size.heads for size in sizes)
    if keep is not None and not 0 < keep <= most:
        raise SurgeryError(
            f"--keep {keep}: layers have {most} heads", hint=f"Keep between 1 and {most}."
        )
    feed = NoData() if method in WITHOUT_DATA else Feed.open(
        checkpoint, data, ood if objective != "acc" else (), method=method, towers=towers, limit=limit, seed=seed,
        device=device, dtype=dtype, batch_size=batch_size, skip_bad=skip_bad, progress=progress,
    )  # fmt: skip
    options = None
    if objective is not None:
        options = CircuitOptions(
            objective=objective,  # type: ignore[arg-type]
            search=search or "exact",
            remove=remove,
            state=None if output is None else state_path(output, method),
            identity={
                "weights": checkpoint.record(checkpoint.digests()).sha256,
                "data": [f"{each.rows} rows {each.sha256[:12]}" for each in feed.records],
                "objective": objective, "search": search or "exact", "layers": layers, "towers": list(towers), "dtype": dtype,
                "batch_size": feed.batch_size, **record_of(model),
            },
        )  # fmt: skip
    subject = Subject(
        checkpoint=checkpoint,
        load=feed.load,
        batches=feed.batches,
        samples=feed.rows,
        keep=keep,
        towers=towers,
        layers=parse_layers(layers, max(size.layers for size in sizes)),
        seed=seed,
        batch_size=feed.batch_size,
        foreign=feed.foreign_batches,
        circuit=options,
        progress=progress,
    )
    verdict = judge(subject)
    if isinstance(verdict, Removal):
        told = {**verdict.settings, **({"tower": tower} if tower is not None else {}), **record_of(model)}  # fmt: skip
        return Score(
            order=verdict.order, trace=verdict.trace, settings=told, data=feed.records
        ), feed.records
    more = verdict.settings if isinstance(verdict, Verdict) else {}
    scores = verdict.scores if isinstance(verdict, Verdict) else verdict
    values = _by_original_number(checkpoint, scores, towers)
    settings: dict[str, Any] = (
        {"keep": keep, "sequential": True} if keep is not None and method == "taylor" else {}
    )
    settings |= more
    if method == "random":
        settings["seed"] = seed
    if tower is not None:
        settings["tower"] = tower
    if method not in WITHOUT_DATA:
        settings |= record_of(model)
    used = feed.records
    return Score(values=values, settings=settings, data=used), used


def _objective(method: str, ood: Sequence[str], search: str | None) -> str | None:
    """The objective of a circuit's key; None for a criterion that has none."""
    circuit, _, objective = method.partition("-")
    if circuit != CIRCUIT:
        given = "--ood" if ood else "--search" if search else None
        if given is not None:
            raise UsageError(f"{given}: --method {method} has no use for it", hint="Leave it out.")
        return None
    if objective != "acc" and not ood:
        raise UsageError(
            f"--objective {objective}: needs OOD data", hint="Give --ood D, or --objective acc."
        )
    return objective


def _by_original_number(
    checkpoint: Checkpoint, found: HeadScores, towers: Sequence[str]
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Scores as [layer][head] of the original model; heads that are gone score 0."""
    manifest = checkpoint.manifest
    assert manifest.kept is not None
    values: dict[str, tuple[tuple[float, ...], ...]] = {}
    for tower in towers:
        layers = []
        for layer, row in enumerate(manifest.kept[tower]):
            scores = dict(zip(row, found[tower, layer], strict=True))
            layers.append(
                tuple(float(scores.get(h, 0.0)) for h in range(manifest.towers[tower].heads))
            )
        values[tower] = tuple(layers)
    return values
