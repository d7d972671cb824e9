"""probe: Proposition 1's conditions on clean and noisy data, and how well heads separate OOD data
(paper B.1, B.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.checkpoint import Single, open_single, undecided
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.criteria import chooser, criterion, score_key
from hydrasurgeon.criteria.scoring import check_keep, compute
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.files.untrusted import portable_entry
from hydrasurgeon.heads import Head, Kept, all_heads, count, removal_order
from hydrasurgeon.measuring.sets import check_once, kind_read, parse_ood
from hydrasurgeon.options.base import stage
from probing.options import ProbeOptions
from probing.plots import check_plot
from probing.report import ProbeReport

SPARED = 3
"""Without a number, one head of so many goes: the paper keeps 8 of 12."""


@stage(ProbeOptions)
def probe(arguments: ProbeOptions) -> ProbeReport:
    """Measure curvature under noise and the separation of OOD data by head; nothing is changed."""
    _check(arguments)
    json = plot = None
    if arguments.plot is not None:
        plot = check_plot(Path(arguments.plot), force=arguments.force, inputs=arguments.sources)
    if arguments.json_ is not None:
        json = output_file(
            arguments.json_, option="--json", force=arguments.force, inputs=arguments.sources
        )
    opened = undecided(open_single(arguments.checkpoint, arch=arguments.arch))
    opened.check_weights()
    samples = open_data(arguments.data, limit=arguments.limit, seed=arguments.seed)
    opened = classifying(opened, arguments, samples)
    arguments = _with_amount(opened.manifest, arguments)
    key, score = _scores(opened, arguments)
    kept = _kept(opened.manifest, key, score, arguments)
    removed = sorted(set(all_heads(opened.manifest.kept)) - set(all_heads(kept)))
    if not removed:
        raise SurgeryError("probe: no head would go", hint="Give --keep K or --remove N.")
    from probing.looking import draw_probe, look

    report, planes = look(
        opened,
        arguments,
        method=key,
        removed=removed,
        ranked=tuple(_ranked(opened.manifest, score)),
        noisy=_noisy(opened, arguments),
        settings=_settings(arguments),
    )
    if opened.note is not None:
        report = report.model_copy(update={"notes": (opened.note, *report.notes)})
    if json is not None:
        write_text(json, report.to_json())
    if plot is not None and report.pictured is not None:
        draw_probe(report.pictured, planes, plot)
    return report


def _check(arguments: ProbeOptions) -> None:
    """Refuse arguments that do not go together."""
    check_keep(arguments.method, arguments.keep)
    check_once("--ood", [parse_ood(entry)[1] for entry in arguments.ood])


def _noisy(opened: Single, arguments: ProbeOptions) -> Callable[[Any], Any]:
    """Return a function that makes noisy data of clean samples, or opens them. Refuse unknown
    corruptions at once.
    """
    from corrupt import Corrupted, corruptions_of

    if arguments.shift is not None:
        spec = arguments.shift
        return lambda _: open_data(spec, limit=arguments.limit, seed=arguments.seed)
    kinds = corruptions_of(arguments.corrupt or ("all",), kind_read(opened.manifest))
    return lambda samples: Corrupted(samples, *kinds, seed=arguments.seed)


def _with_amount(manifest: SingleManifest, arguments: ProbeOptions) -> ProbeOptions:
    """Return options that keep two of three heads in each layer if no number is given; scores by
    layers depend on it.
    """
    circuit = score_key(arguments.method).is_circuit
    if (
        arguments.keep is not None
        or arguments.remove is not None
        or circuit
        or manifest.kind != "backbone"
    ):
        return arguments
    heads = min(size.heads for size in manifest.towers.values())
    return arguments.but(keep=heads - heads // SPARED)


def _scores(opened: Single, arguments: ProbeOptions) -> tuple[str, Score]:
    """Return recorded scores, or compute new ones; do not search a circuit for them."""
    recorded = opened.manifest.scores
    key = score_key(arguments.method, arguments.objective, recorded=recorded)
    if str(key) in recorded:
        return str(key), recorded[str(key)]
    criterion(key)  # a misspelt name is the first thing to say
    if key.is_circuit:
        raise UsageError(
            f"{opened.path}: has no {key} scores",
            hint=(
                f"Run `hydrasurgeon score --method {key} --data D --ood O {opened.path.name}` "
                "first."
            ),
        )
    needed = arguments.data if criterion(key).needs_data else None
    scoring = arguments.but(ood=(), data=needed)
    samples = open_data(arguments.data, limit=arguments.limit, seed=arguments.seed)
    return str(key), compute(opened, key, scoring, arguments, samples, output=opened.path)


def _kept(manifest: SingleManifest, key: str, score: Score, arguments: ProbeOptions) -> Kept:
    """Return the heads that stay: as `prune` chooses them, or two of three."""
    remove = arguments.remove
    if arguments.keep is None and remove is None:
        most = count(manifest.kept) if score.order is None else len(score.order)
        remove = max(1, min(count(manifest.kept) // SPARED, most))
    kept, _ = chooser(key)(
        manifest,
        score,
        keep=arguments.keep,
        remove=remove,
        layers=arguments.layers,
        tower=arguments.tower,
    )
    return kept


def _ranked(manifest: SingleManifest, score: Score) -> Iterator[Head]:
    """Return heads of the tower that data run through, by rising importance."""
    tower = next(iter(manifest.towers))
    present = [head for head in all_heads(manifest.kept) if head.tower == tower]
    if score.order is not None:
        order = [Head(*entry) for entry in score.order]
        yield from (head for head in order if head in present)
        # Heads that never went outlast the others; nobody knows in which order.
        yield from (head for head in present if head not in order)
    elif score.values is not None and tower in score.values:
        yield from removal_order(score.values, present)


def _settings(arguments: ProbeOptions) -> dict[str, Any]:
    """Return the settings that the report records."""
    named = {
        "data": portable_entry(arguments.data),
        "ood": [portable_entry(o) for o in arguments.ood],
        "corrupt": list(arguments.corrupt) or (["all"] if arguments.shift is None else []),
        "shift": arguments.shift and portable_entry(arguments.shift),
    }
    plain = (
        "method",
        "keep",
        "remove",
        "layers",
        "tower",
        "draws",
        "limit",
        "seed",
        "dtype",
        "batch_size",
    )
    return named | {name: getattr(arguments, name) for name in plain}
