"""prune: remove heads from a checkpoint; a file operation that loads the model only to repair it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import fitted_to, names_in, with_class_names
from hydrasurgeon.checkpoints.reading import Single, open_single, rewritten, undecided
from hydrasurgeon.criteria import WITHOUT_DATA, chooser, criterion, score_key
from hydrasurgeon.criteria.circuits import clear_search
from hydrasurgeon.criteria.rearrange import check_rearrange, rearranged
from hydrasurgeon.criteria.scoring import check_keep, compute
from hydrasurgeon.criteria.selection import kept_from_file, movable
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import UNKNOWN, DataRecord, Input, Score, SingleManifest, Step
from hydrasurgeon.files.tensors import weights_sha256
from hydrasurgeon.heads import Kept, count
from hydrasurgeon.lookup import whole_number
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import PruneOptions
from hydrasurgeon.sharing.output import claimed, repository_of
from hydrasurgeon.surgery.compensate import repaired_tensors
from hydrasurgeon.surgery.cut import plan_pruning

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


@dataclass(frozen=True)
class Pruned:
    path: Path
    manifest: SingleManifest
    removed: int
    notes: tuple[str, ...] = ()
    hub: str | None = None
    """Where on the hub it was uploaded to."""


@dataclass(frozen=True)
class _Choice:
    """The heads to keep, and what they were chosen by."""

    kept: Kept
    scores: Mapping[str, Score]
    """All that the member's manifest records."""
    data: tuple[DataRecord, ...] = ()
    """What scores were computed on just now."""
    notes: tuple[str, ...] = ()


@stage(PruneOptions)
def prune(arguments: PruneOptions) -> Pruned:
    """Write a member: the checkpoint without the heads that matter least."""
    checkpoint = arguments.checkpoint
    _check_amount(arguments)
    repository = repository_of(arguments)
    check_keep(arguments.method, arguments.keep)
    if arguments.rearrange:
        check_rearrange(arguments.method)
    opened = _opened(checkpoint, arguments)
    key = _key(opened, arguments)
    label = key or "mask"
    target = claimed(
        arguments,
        arguments.out if arguments.out is not None else _default_name(opened.home, label, arguments),
        inputs=[checkpoint, arguments.mask, arguments.data, arguments.ood, arguments.classes, arguments.template],
        repository=repository,
    )
    choice = _choose(opened, key, arguments, target.path)
    repaired, data = _repair(opened, choice, arguments)
    hashes: dict[str, str] = {}
    args = {**arguments.recorded(), "method": key}
    uses = ("torch", opened.manifest.model.family) if arguments.repairs else ()
    entry = step("prune", args=args, inputs=(), data=data, seed=arguments.seed, uses=uses)
    manifest = _manifest_of(opened, choice, entry, hashes)
    planned = plan_pruning(opened, choice.kept, hashes, repaired)
    written = target.save(planned, manifest, files=opened.files)
    clear_search(target.path, label)
    hub = target.publish(written, opened.files, bars=arguments.progress is not None)
    removed = count(opened.manifest.kept) - count(choice.kept)
    notes = (opened.note, *choice.notes) if opened.note else choice.notes
    return Pruned(target.path, written, removed, notes, hub)


def _check_amount(arguments: PruneOptions) -> None:
    """Exactly one option says how many heads go."""
    amounts = {
        "--keep": arguments.keep,
        "--remove": arguments.remove,
        "--sample": arguments.sample,
        "--mask": arguments.mask,
    }
    named = [name for name, value in amounts.items() if value is not None]
    if len(named) != 1:
        wrong = f"{' and '.join(named)} together" if named else "no number of heads"
        raise UsageError(f"prune: {wrong}", hint="Give one of --keep K, --remove N, --sample N/P, --mask FILE.")


def _opened(checkpoint: str | Path, arguments: PruneOptions) -> Single:
    """The checkpoint, as a classifier of the data's classes where data is scored."""
    opened = undecided(open_single(checkpoint, arch=arguments.arch))
    method, data = arguments.method, arguments.data
    scored = data is not None and method is not None and method not in WITHOUT_DATA
    opened = with_class_names(
        opened, classes=arguments.classes, templates=arguments.template, names=names_in(data) if scored else None
    )
    return fitted_to(opened, data, arguments) if scored and data is not None else opened


def _key(opened: Single, arguments: PruneOptions) -> str | None:
    """Under which name the scores stand in the manifest; None for a mask."""
    if arguments.method is None:
        return None
    return score_key(arguments.method, arguments.objective, arguments.ood_score, recorded=opened.manifest.scores)


def _choose(opened: Single, key: str | None, arguments: PruneOptions, output: Path) -> _Choice:
    """The heads to keep: a mask's, or those that scores leave."""
    scores = dict(opened.manifest.scores)
    if arguments.mask is not None:
        return _Choice(kept_from_file(Path(arguments.mask), opened.manifest), scores)
    key, score, data = _score(opened, key, arguments, output)
    scores[key] = score
    notes = [*score.settings.get("notes", ())]
    keep, decided = arguments.keep, score.settings.get("keep")
    if keep is not None and decided not in (None, keep):
        notes.append(f"the {key} scores were computed layer by layer for --keep {decided}, not {keep}")
    kept, more = chooser(key)(
        opened.manifest,
        score,
        keep=keep,
        remove=arguments.remove,
        sample=arguments.sample,
        layers=arguments.layers,
        tower=arguments.tower,
        seed=arguments.seed,
    )
    if arguments.rearrange:
        free = movable(opened.manifest, score, layers=arguments.layers, tower=arguments.tower)
        kept = rearranged(opened.manifest, score, kept, free, str(opened.path))
    return _Choice(kept, scores, data, (*notes, *more))


def _score(
    opened: Single, key: str | None, arguments: PruneOptions, output: Path
) -> tuple[str, Score, tuple[DataRecord, ...]]:
    """Recorded scores, or new ones where there is data; data that calibrates a repair replaces no record."""
    if key is None:
        raise UsageError("prune: by which criterion?", hint="Give --method taylor, or --mask FILE.")
    recorded = opened.manifest.scores.get(key)
    if recorded is None:
        criterion(key)  # a misspelt name is the first thing to say
    if recorded is not None and (arguments.data is None or arguments.repairs):
        return key, recorded, ()
    if arguments.data is None and key not in WITHOUT_DATA:
        name = opened.path.name
        needs = "--data D --ood O" if key.startswith(("circuit-ood", "circuit-avg")) else "--data D"
        raise UsageError(
            f"{opened.path}: has no {key} scores",
            hint=f"Run `hydrasurgeon score --method {key} {needs} {name}` first, or give {needs} here.",
        )
    scoring = arguments.but(remove=_needed(arguments.remove, arguments.sample))
    score = compute(opened, key, scoring, arguments, output=output)
    return key, score, score.data


def _needed(remove: int | None, sample: str | None) -> int | None:
    """How long a removal order must be to remove, or to draw from, so many."""
    pool = sample.partition("/")[2] if sample is not None else ""
    count = whole_number(pool)
    return remove if count is None else count


def _repair(opened: Single, choice: _Choice, arguments: PruneOptions) -> tuple[dict[str, Raw], tuple[DataRecord, ...]]:
    """The tensors that are not the checkpoint's own, and all the data that was read."""
    if not arguments.repairs:
        return {}, choice.data
    assert arguments.data is not None, "--compensate requires it"
    repaired, calibration = repaired_tensors(
        opened, choice.kept, how=arguments.compensate, data=arguments.data, run=arguments
    )
    return repaired, tuple(dict.fromkeys((*choice.data, calibration)))


def _manifest_of(
    opened: Single, choice: _Choice, entry: Step, hashes: Mapping[str, str]
) -> Callable[[str], SingleManifest]:
    """The member's manifest, once the hash of its weights is there; by then `hashes` holds the input's."""

    def manifest(sha256: str) -> SingleManifest:
        source = UNKNOWN
        if sha256 != UNKNOWN:
            source = weights_sha256(opened.tensors, hashes)
            # Every byte has passed by now: refuse before anything takes its place.
            opened.check(hashes)
        done = entry.model_copy(update={"inputs": (Input(name=opened.name, sha256=source),)})
        return rewritten(
            opened.manifest,
            kind="member",
            kept=choice.kept,
            scores=choice.scores,
            weights_sha256=sha256,
            history=(*opened.manifest.history, done.wrote(sha256)),
        )

    return manifest


def _default_name(path: Path, label: str, arguments: PruneOptions) -> Path:
    """`vit-taylor-k8.safetensors` beside the input."""
    amount = ""
    if arguments.keep is not None:
        amount = "-auto" if arguments.keep == "auto" else f"-k{arguments.keep}"
    elif arguments.remove is not None:
        amount = f"-r{arguments.remove}"
    elif arguments.sample is not None:
        amount = f"-s{arguments.sample.replace('/', 'of')}-seed{arguments.seed}"
    repair = "-rearranged" if arguments.rearrange else ""
    repair += f"-{arguments.compensate}" if arguments.repairs else ""
    where = f"-{arguments.tower}" if arguments.tower not in (None, "both") else ""
    stem = path.name.removesuffix(".safetensors")
    return path.with_name(f"{stem}-{label}{where}{amount}{repair}.safetensors")
