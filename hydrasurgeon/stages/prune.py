"""prune: remove heads, neurons and tokens from a checkpoint; a file operation that loads the model
only to repair it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Single, open_single, rewritten, undecided
from hydrasurgeon.checkpoints.class_names import named_by
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.criteria import ScoreKey, chooser, clear, criterion, neurons_key, score_key
from hydrasurgeon.criteria.neurons import choose_neurons
from hydrasurgeon.criteria.scoring import check_keep, compute
from hydrasurgeon.criteria.selection import kept_from_file
from hydrasurgeon.data.samples import left_out_note
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.history import step
from hydrasurgeon.files.manifest import (
    UNKNOWN,
    DataRecord,
    Input,
    Score,
    SingleManifest,
)
from hydrasurgeon.heads import NEURONS, Kept, count
from hydrasurgeon.lookup import whole_number
from hydrasurgeon.measuring import known
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.making import AMOUNTS, PruneOptions
from hydrasurgeon.surgery.cut import check_stock, plan_pruning
from hydrasurgeon.surgery.repair import repaired_tensors
from hydrasurgeon.surgery.vocabulary import Trimmed, trim

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples
    from hydrasurgeon.files.tensors import Raw


EVEN = (
    "Leave out --even, or give --neurons SHARE alone: every library takes fewer neurons (DINOv2 in "
    "whole multiples of its width), few take fewer heads."
)
"""Hint for a cut that the model's own library cannot load."""


@dataclass(frozen=True)
class Pruned:
    path: Path
    manifest: SingleManifest = field(repr=False)
    removed: int
    """Heads."""
    parameters: tuple[int, int]
    """Before and after."""
    notes: tuple[str, ...] = ()
    vocabulary: Trimmed | None = None


class _Scores:
    """Scores of a checkpoint by name: stored ones, and those that are computed on first use."""

    def __init__(
        self, opened: Single, arguments: PruneOptions, samples: Samples | None, output: Path
    ) -> None:
        self.opened = opened
        self.arguments = arguments
        self.samples = samples
        self.output = output
        self.by_name = dict(opened.manifest.scores)
        self.data: list[DataRecord] = []
        """Data that scores were computed on here."""

    def of(self, key: ScoreKey) -> Score:
        name = str(key)
        # Whoever asks for the repair by name may have scores of other data.
        anew = self.arguments.data is not None and self.arguments.compensate != "lstsq"
        if name not in self.by_name or anew:
            self.by_name[name] = _computed(
                self.opened, key, self.arguments, self.samples, self.output
            )
            self.data += self.by_name[name].data
        return self.by_name[name]


@stage(PruneOptions)
def prune(arguments: PruneOptions) -> Pruned:
    """Write a member: the checkpoint without the heads, and the neurons, that matter least.

    Examples:
        >>> hs.prune("backbone", method="magnitude", keep=6, out="member.safetensors").removed
        12
    """
    opened, key, samples = _opened(arguments)
    out = arguments.out or opened.home.with_name(_default_name(opened.home.name, key, arguments))
    target = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    scores = _Scores(opened, arguments, samples, target)
    left_out = None if samples is None else left_out_note(samples)
    notes = [note for note in (opened.note, left_out) if note]
    kept: Kept = opened.manifest.kept
    neurons = dict(opened.manifest.kept_neurons or {})
    if key is not None:
        kept, more = _chosen(opened, key, scores.of(key), arguments)
        notes += more
    elif arguments.mask is not None:
        kept = kept_from_file(Path(arguments.mask), opened.manifest)
    if (share := arguments.neurons) is not None:
        by = neurons_key(arguments.method)
        neurons |= choose_neurons(opened, scores.of(by), share, arguments)
    trimmed = trim(opened, arguments) if arguments.vocabulary else None
    if arguments.even:
        changes = {"kind": "member", "kept": kept, "kept_neurons": neurons or None}
        check_stock(opened, rewritten(opened.manifest, **changes), hint=EVEN)
    cut = {**kept, **{f"{tower}{NEURONS}": rows for tower, rows in neurons.items()}}
    repaired = _repaired(opened, cut, samples, arguments, notes)
    if repaired and arguments.compensate is None:
        notes.append(
            "the output projections were refitted by least squares, unlike in the paper; "
            "--compensate none turns this off"
        )
    elif samples is None and arguments.compensate is None and key and criterion(key).needs_data:
        notes.insert(0, "the kept heads were not refitted: --data D repairs them by least squares")
    data = dict.fromkeys((*scores.data, *(() if trimmed is None else trimmed.data)))
    if repaired and samples is not None:
        fitted = known.record(samples)
        data = dict.fromkeys((*(one for one in data if one.sha256 != fitted.sha256), fitted))
    uses = ["torch", opened.manifest.model.family] if repaired else []
    uses += ["tokenizers"] if trimmed is not None else []
    args = {**arguments.recorded(), "method": arguments.method if key is None else str(key)}
    entry = step("prune", args=args, inputs=(), data=tuple(data), seed=arguments.seed, uses=uses)
    hashes: dict[str, str] = {}

    def manifest(sha256: str) -> SingleManifest:
        """Return the manifest. It is called once the weights are written, when `hashes` holds those
        of the input.
        """
        # Every byte has passed: refuse before anything takes its place.
        source = UNKNOWN if sha256 == UNKNOWN else opened.check(hashes)
        done = entry.model_copy(update={"inputs": (Input(name=opened.name, sha256=source),)})
        changes = {
            "kind": "member" if arguments.cuts else opened.manifest.kind,
            "model": opened.manifest.model if trimmed is None else trimmed.model,
            "kept": kept,
            "kept_neurons": neurons or None,
            "scores": scores.by_name,
            "weights_sha256": sha256,
            "history": (*opened.manifest.history, done.wrote(sha256)),
        }
        return rewritten(opened.manifest, **changes)

    chosen, files = {}, opened.files
    if trimmed is not None:
        chosen, files = {trimmed.table: trimmed.rows}, trimmed.files
    planned = plan_pruning(opened, cut, hashes, repaired, chosen=chosen)
    written = save(target, planned, manifest, files=files)
    if key is not None:
        clear(key, target)
    removed = count(opened.manifest.kept) - count(kept)
    before, after = (
        sum(math.prod(t.shape) for t in tensors) for tensors in (opened.tensors.values(), planned)
    )
    return Pruned(target, written, removed, (before, after), tuple(notes), trimmed)


def _repaired(
    opened: Single,
    cut: Kept,
    samples: Samples | None,
    arguments: PruneOptions,
    notes: list[str],
) -> dict[str, Raw]:
    """Refit tensors to the samples. A failure becomes a note unless the repair was asked for by
    name.
    """
    if samples is None or not arguments.repairs:
        return {}
    try:
        return repaired_tensors(opened, cut, samples=samples, run=arguments)
    except SurgeryError as error:
        if arguments.compensate is not None:
            raise
        notes.append(f"the kept heads were not refitted: {error.message}")
        return {}


def _opened(arguments: PruneOptions) -> tuple[Single, ScoreKey | None, Samples | None]:
    """Open the checkpoint and the data, and find the key of its scores; None for a mask. Where data
    is scored, the checkpoint gets a classifier of its classes.
    """
    named = any(getattr(arguments, name) is not None for name in AMOUNTS)
    if not (arguments.cuts or arguments.vocabulary):
        hint = "Give --neurons SHARE, --keep K, --remove N, --sample N/P, --mask FILE or --vocabulary D."
        raise UsageError("prune: the number of heads or neurons is missing", hint=hint)
    method, data, repairs = arguments.method, arguments.data, arguments.repairs
    check_keep(method, arguments.keep)
    opened = undecided(open_single(arguments.checkpoint, arch=arguments.arch))
    scored = data is not None and method is not None and criterion(method).needs_data
    samples = None
    if data is not None and (scored or repairs):
        from hydrasurgeon.data import read_data

        samples = read_data(data, arguments)
    opened = named_by(opened, arguments, samples if scored else None)
    if method is None or arguments.mask is not None or not named:
        return opened, None, samples
    key = score_key(method, arguments.objective, recorded=opened.manifest.scores)
    return opened, key, samples


def _computed(
    opened: Single,
    key: ScoreKey,
    arguments: PruneOptions,
    samples: Samples | None,
    output: Path,
) -> Score:
    """Compute scores that the checkpoint does not carry."""
    criterion(key)  # a misspelt name is the first thing to say
    if arguments.data is None and criterion(key).needs_data:
        needs = "--data D --ood O" if key.objective in ("ood", "avg") else "--data D"
        raise UsageError(
            f"{opened.name}: has no {key} scores",
            hint=(
                f"Run `hydrasurgeon score {arguments.checkpoint} --method {' '.join(key.words)} {needs}` "
                f"first, or give {needs} here."
            ),
        )
    if key.part == "neurons":
        return compute(
            opened,
            key,
            arguments.but(ood=(), search=None, keep=None),
            arguments,
            samples,
            output=output,
        )
    # An order must be long enough to remove, or to draw from, so many.
    pool = whole_number((arguments.sample or "").partition("/")[2])
    scoring = arguments.but(remove=arguments.remove if pool is None else pool)
    return compute(opened, key, scoring, arguments, samples, output=output)


def _chosen(
    opened: Single, key: ScoreKey, score: Score, arguments: PruneOptions
) -> tuple[Kept, list[str]]:
    """Choose the heads to keep by their scores; return them with notes on the choice."""
    manifest, names = opened.manifest, ("keep", "remove", "sample", "layers", "tower", "seed")
    amount = {name: getattr(arguments, name) for name in names}
    notes, decided = [*score.settings.get("notes", ())], score.settings.get("keep")
    confined = score.settings.get("layers")
    layers = max(tower.layers for tower in manifest.towers.values())
    if arguments.layers is None and isinstance(confined, list) and len(confined) < layers:
        typed = ",".join(map(str, confined))
        notes.append(f"the {key} scores are of --layers {typed}, and only those lose heads")
    if arguments.keep is not None and decided not in (None, arguments.keep):
        notes.append(
            f"the {key} scores were computed layer by layer for --keep {decided}, not "
            f"{arguments.keep}"
        )
    if arguments.degree is not None:
        if not criterion(key).own_number:
            raise UsageError("--degree requires --method cahp.")
        amount["degree"] = arguments.degree
    if arguments.even and not criterion(key).own_number:
        amount["even"] = True
    if str(key) == "taylor" and arguments.keep is not None and decided is None:
        notes.append(
            "these taylor scores are of the unpruned model; to score layer by layer, as the paper does, "
            f"use score --keep {arguments.keep} or prune --data D"
        )
    kept, more = chooser(key)(manifest, score, **amount)
    return kept, [*notes, *more]


def _default_name(name: str, key: ScoreKey | None, arguments: PruneOptions) -> str:
    """Return a file name from the input's name and the options, as `vit-taylor-k8.safetensors`."""
    amount = ""
    if arguments.keep is not None:
        amount = "-auto" if arguments.keep == "auto" else f"-k{arguments.keep}"
    elif arguments.remove is not None:
        amount = f"-r{arguments.remove}"
    elif arguments.sample is not None:
        amount = f"-s{arguments.sample.replace('/', 'of')}-seed{arguments.seed}"
    repair = "-lstsq" if arguments.compensate == "lstsq" else ""
    amount += "" if arguments.neurons is None else f"-n{arguments.neurons:g}"
    method = "mask" if arguments.mask is not None else arguments.method or "taylor"
    where = f"-{arguments.tower}" if arguments.tower not in (None, "both") else ""
    done = f"-{key or method}{where}{amount}{repair}" if arguments.cuts else ""
    done += "-vocabulary" if arguments.vocabulary else ""
    return f"{name.removesuffix('.safetensors')}{done}.safetensors"
