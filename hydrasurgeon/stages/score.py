"""score: how much each head matters, written into the manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.class_names import fitted_to, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, Single, open_single, rewritten
from hydrasurgeon.checkpoints.writing import claim_checkpoint, claim_in_place, record_in_place, save
from hydrasurgeon.criteria import criterion, score_key
from hydrasurgeon.criteria.circuits import clear_search
from hydrasurgeon.criteria.scoring import check_keep, compute
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import Input, Manifest, Score, Step
from hydrasurgeon.files.plots import check_plot
from hydrasurgeon.files.processes import is_main_process, process_count
from hydrasurgeon.lookup import imported
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import ScoreOptions


@dataclass(frozen=True)
class Scored:
    """What `score` found and where it was written."""

    path: Path
    manifest: Manifest
    method: str
    notes: tuple[str, ...] = ()
    """What was assumed of the checkpoint."""

    @property
    def result(self) -> Score:
        return self.manifest.scores[self.method]


@stage(ScoreOptions)
def score(arguments: ScoreOptions) -> Scored:
    """Score heads by a criterion and record the result in the checkpoint's manifest."""
    checkpoint = arguments.checkpoint
    if process_count() == 1:
        return _score(checkpoint, arguments)
    from hydrasurgeon.runtime.processes import joined

    with joined():  # once: processes that part cannot meet again
        return _score(checkpoint, arguments)


def _score(checkpoint: str | Path, arguments: ScoreOptions) -> Scored:
    key = score_key(arguments.method, arguments.objective, arguments.ood_score)
    check_keep(arguments.method, arguments.keep)
    picture = _picture(checkpoint, arguments)
    opened, copy = _opened(checkpoint, arguments)
    digests = opened.digests()
    target = copy or opened.path
    result = compute(opened, key, arguments, arguments, output=target)
    if picture is not None and is_main_process():
        imported(str(criterion(key).draw))(result, picture)
    record = opened.record(digests)
    manifest = _manifest_of(opened, key, result, _entry(opened, key, result, record, arguments))
    _all_have_read()
    if not is_main_process():
        return Scored(target, manifest(record.sha256), key)
    if copy is not None:
        written = save(copy, opened.tensors.planned(), manifest, files=opened.files)
    else:
        written = manifest(record.sha256)
        record_in_place(opened.path, opened.tensors.files[0], written)
    clear_search(target, key)
    return Scored(target, written, key, notes=(opened.note,) if opened.note else ())


def _all_have_read() -> None:
    """The first process replaces the file: it waits for those that torchrun started beside it."""
    if process_count() > 1:
        from hydrasurgeon.runtime.processes import joined

        with joined() as world:
            world.gather(None)


def _picture(checkpoint: str | Path, arguments: ScoreOptions) -> Path | None:
    """Where cahp's curve and clusters are drawn."""
    if arguments.plot is None:
        return None
    if criterion(arguments.method).draw is None:
        raise UsageError("--plot requires --method cahp", hint="`inspect` shows the scores of other criteria.")
    return check_plot(Path(arguments.plot), force=arguments.force, inputs=[checkpoint, arguments.data])


def _opened(checkpoint: str | Path, arguments: ScoreOptions) -> tuple[Single, Path | None]:
    """The checkpoint to score, and where its copy goes; what is written is this command's from here on."""
    opened = open_single(checkpoint, arch=arguments.arch)
    if opened.hub_id is not None and arguments.out is None:
        raise UsageError(
            f"{opened.hub_id}: scores cannot be written into the hub's cache",
            hint="Give -o NAME.safetensors: a copy that carries them.",
        )
    copy = None
    if arguments.out is not None:
        inputs = [checkpoint, arguments.data, arguments.ood, arguments.classes, arguments.template]
        copy = claim_checkpoint(arguments.out, force=arguments.force, inputs=inputs)
    else:
        claim_in_place(opened.path)
        # Another score may have ended just now.
        opened = open_single(checkpoint, arch=arguments.arch)
    names = None if not criterion(arguments.method).needs_data else names_in(arguments.data)
    opened = with_class_names(opened, classes=arguments.classes, templates=arguments.template, names=names)
    if arguments.data is not None and names is not None:
        opened = fitted_to(opened, arguments.data, arguments)
    return opened, copy


def _entry(opened: Checkpoint, key: str, result: Score, record: Input, arguments: ScoreOptions) -> Step:
    """What history gets to know."""
    recorded = {**arguments.recorded(), "method": key}
    method = criterion(key)
    uses = (*(("torch", opened.manifest.model.family) if method.needs_data else ()), *method.uses)
    return step("score", args=recorded, inputs=[record], data=result.data, seed=arguments.seed, uses=uses)


def _manifest_of(opened: Checkpoint, key: str, result: Score, entry: Step) -> Callable[[str], Manifest]:
    """The checkpoint's manifest with these scores, once the hash of the weights is there."""
    base = opened.manifest
    # Scoring again by the same method replaces the entry: the weights do not depend on it.
    before = [s for s in base.history if not _same_scoring(s, key)]
    return lambda sha256: rewritten(
        base, weights_sha256=sha256, scores={**base.scores, key: result}, history=(*before, entry.wrote(sha256))
    )


def _same_scoring(entry: Step, method: str) -> bool:
    return entry.command == "score" and entry.args.get("method") == method
