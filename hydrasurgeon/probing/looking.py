"""One model looked into: passes over clean, noisy and OOD data, and the report they amount to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.data import Batches, Samples, fit_classes, moved, open_data
from hydrasurgeon.errors import DataError, SurgeryError
from hydrasurgeon.heads import Head
from hydrasurgeon.measuring.sets import in_samples, parse_ood
from hydrasurgeon.options.measuring import ProbeOptions
from hydrasurgeon.options.shared import Run
from hydrasurgeon.probing.curvature import Curvature, Weights, curvature, loss_of, means_by_head
from hydrasurgeon.probing.report import (
    Gradient,
    Hessian,
    Losses,
    PerHead,
    Pictured,
    ProbeReport,
    Proposition,
    Separation,
)
from hydrasurgeon.probing.separation import Doubles, Moments, distances, head_moments, plane
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.runtime.tensors import device_of, dtype_of

AT_ONCE = 16
"""Samples in one pass, if nobody says: the graph of a gradient is large."""
SHOWN = 6
"""Heads of each kind in the picture (paper, Figure 4)."""
POINTS = 400
"""Samples of each set in the picture, spread over it."""

Points = tuple[Doubles, Doubles]
"""ID and OOD samples in the plane."""


@dataclass(frozen=True)
class Subject:
    """What is looked into, and on what."""

    checkpoint: Single
    method: str
    gone: tuple[Head, ...]
    """The heads that Proposition 1 is asked about."""
    ranked: tuple[Head, ...]
    """From the least to the most important."""
    noisy: Callable[[Samples], Samples]
    options: ProbeOptions


@dataclass(frozen=True)
class Probed:
    """The report, and the points of the picture, which it leaves out."""

    report: ProbeReport
    points: Mapping[str, Mapping[Head, Points]]
    """OOD set → head → where its samples lie."""


@dataclass(frozen=True)
class _Model:
    """A live model, and how samples reach it."""

    module: Any
    anatomy: Anatomy
    transform: Any
    run: Run

    def batches(self, samples: Samples, what: str) -> Iterator[Any]:
        """In the order of the samples: clean and noisy ones must meet in the same batches."""
        weight = next(self.module.parameters())
        loader = Batches(samples, self.transform, batch_size=self.run.batch_size or AT_ONCE, skip_bad=self.run.skip_bad)
        for done, batch in enumerate(loader, 1):
            inputs = moved(batch.inputs, weight.device, weight.dtype)
            labels = None if batch.labels is None else batch.labels.to(weight.device)
            yield inputs, labels, batch.index
            self.run.tick(what, done, len(loader))

    def labelled(self, samples: Samples, what: str) -> Iterator[tuple[Any, Tensor]]:
        return ((inputs, labels) for inputs, labels, _ in self.batches(samples, what))

    def placed(self, samples: Samples, what: str) -> Iterator[tuple[Any, Tensor]]:
        return ((inputs, index) for inputs, _, index in self.batches(samples, what))


def look(subject: Subject, *, settings: dict[str, Any]) -> Probed:
    """Both halves of the report."""
    checkpoint, run = subject.checkpoint, subject.options
    about = checkpoint.manifest.model

    clean = open_data(str(run.data), limit=run.limit, seed=run.seed, model=about)
    noisy = fit_classes(subject.noisy(clean), about)
    named = [parse_ood(entry) for entry in run.ood]
    foreign = [(name, open_data(spec, limit=run.limit, seed=run.seed)) for _, name, spec in named]
    widest = max(size.head_dim for size in checkpoint.manifest.towers.values())
    if foreign and len(clean) <= widest:
        raise DataError(
            f"{clean.spec}: {len(clean)} samples have no covariance of {widest} dimensions",
            hint=f"Give more than {widest}.",
        )
    module = live_module(checkpoint).to(device=device_of(run.device), dtype=dtype_of(run.dtype))
    module.requires_grad_(False)
    family = checkpoint.family
    model = _Model(module, family.anatomy(module), family.transform(about, files=checkpoint.files), run)
    notes: tuple[str, ...] = () if clean.note is None else (clean.note,)
    notes += tuple(in_samples(clean, foreign, harm="what is the same in both makes every distance smaller"))
    proposition = _proposition(subject, model, clean, noisy)
    if proposition.losses.gap == 0 == proposition.losses.gap_pruned:
        notes += (
            (
                f"{noisy.spec} costs the model exactly what {clean.spec} does: no noise, which shows nothing of"
                " Proposition 1"
            ),
        )
    separation, pictured, points = _separation(subject, model, clean, foreign)
    report = ProbeReport(
        name=checkpoint.name.removesuffix(".safetensors"),
        settings=settings,
        proposition=proposition,
        separation=separation,
        pictured=pictured,
        notes=notes,
    )
    return Probed(report, points)


def _proposition(subject: Subject, model: _Model, clean: Samples, noisy: Samples) -> Proposition:
    """Two passes with gradients, two without the heads that go."""
    weights = Weights.of(model.anatomy.sites)
    removal = weights.removal(subject.gone)

    def bent(samples: Samples, what: str) -> Curvature:
        return curvature(
            model.module,
            weights,
            model.labelled(samples, what),
            removal,
            draws=subject.options.draws,
            seed=subject.options.seed,
        )

    def loss(samples: Samples, what: str) -> float:
        with ablated(model.anatomy.sites, subject.gone):
            return loss_of(model.module, model.labelled(samples, what))

    plain, spoiled = bent(clean, "clean data"), bent(noisy, "noisy data")
    pruned, both_lost = loss(clean, "clean, pruned"), loss(noisy, "noisy, pruned")
    gap, gap_pruned = spoiled.loss - plain.loss, both_lost - pruned
    losses = {
        "clean": plain.loss,
        "noisy": spoiled.loss,
        "clean_pruned": pruned,
        "noisy_pruned": both_lost,
        "gap": gap,
        "gap_pruned": gap_pruned,
    }
    if not all(math.isfinite(value) for value in (*losses.values(), *plain.means, *spoiled.means)):
        raise SurgeryError(
            f"probe: losses or second derivatives of {subject.checkpoint.name} are not finite",
            hint="Its weights hold NaN or infinity (`hydrasurgeon verify` names the tensors), or the model overflows.",
        )
    return Proposition(
        method=subject.method,
        removed=tuple((h.tower, h.layer, h.number) for h in subject.gone),
        clean=clean.spec,
        noisy=noisy.spec,
        samples=plain.samples,
        draws=subject.options.draws,
        losses=Losses(**losses, widens=gap_pruned >= gap),
        gradient=_gradient(plain, spoiled, removal),
        hessian=_hessian(subject, weights, plain, spoiled),
    )


def _gradient(plain: Curvature, spoiled: Curvature, removal: Sequence[Tensor]) -> Gradient:
    noisy = _dot(spoiled.gradient, removal)
    return Gradient(
        noisy=noisy,
        clean=_dot(plain.gradient, removal),
        noisy_norm=_dot(spoiled.gradient, spoiled.gradient) ** 0.5,
        clean_norm=_dot(plain.gradient, plain.gradient) ** 0.5,
        removal_norm=_dot(removal, removal) ** 0.5,
        holds=noisy >= 0,
    )


def _hessian(subject: Subject, weights: Weights, plain: Curvature, spoiled: Curvature) -> Hessian:
    differences = [n - t for n, t in zip(spoiled.diagonal, plain.diagonal, strict=True)]
    draws = np.array(spoiled.means) - np.array(plain.means)
    by_head = means_by_head(weights, differences)
    heads = [value for row in by_head.values() for value in row]
    size = sum(difference.numel() for difference in differences)
    mean, along = float(draws.mean()), spoiled.along - plain.along
    return Hessian(
        mean=mean,
        error=float(draws.std(ddof=1) / len(draws) ** 0.5) if len(draws) > 1 else None,
        positive_weights=sum(int((d > 0).sum()) for d in differences) / size,
        positive_heads=sum(value > 0 for value in heads) / len(heads),
        along=along,
        heads=_per_head(subject.checkpoint, by_head),
        mean_holds=mean > 0,
        along_holds=along > 0,
    )


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum().item() for x, y in zip(a, b, strict=True)))


def _per_head(checkpoint: Single, rows: Mapping[tuple[str, int], Sequence[float]]) -> PerHead:
    """Numbers of the heads present, by their number in the original model."""
    manifest = checkpoint.manifest
    towers = [tower for tower in manifest.towers if any(name == tower for name, _ in rows)]
    numbers: dict[str, tuple[tuple[float | None, ...], ...]] = {}
    for tower in towers:
        layers = []
        for layer, kept in enumerate(manifest.kept[tower]):
            values = dict(zip(kept, rows.get((tower, layer), ()), strict=False))
            layers.append(tuple(values.get(h) for h in range(manifest.towers[tower].heads)))
        numbers[tower] = tuple(layers)
    return numbers


def _separation(
    subject: Subject, model: _Model, clean: Samples, foreign: Sequence[tuple[str, Samples]]
) -> tuple[tuple[Separation, ...], Pictured | None, dict[str, dict[Head, Points]]]:
    """Distances for each OOD set, and the heads of the picture."""
    if not foreign:
        return (), None, {}

    def moments(samples: Samples, what: str) -> dict[tuple[str, int], Moments]:
        return head_moments(model.module, model.anatomy, model.placed(samples, what), _spread(len(samples)))

    inside = moments(clean, "heads on the data")
    least, most = subject.ranked[:SHOWN], subject.ranked[: -SHOWN - 1 : -1]
    rows: list[Separation] = []
    points: dict[str, dict[Head, Points]] = {}
    explained: dict[str, tuple[float, ...]] = {}
    for name, samples in foreign:
        outside = moments(samples, f"heads on {name}")
        both = {place: distances(inside[place], outside[place]) for place in inside}
        last = both[max(both, key=lambda place: place[1])]
        rows.append(
            Separation(
                name=name,
                samples=len(samples),
                euclidean=_per_head(subject.checkpoint, {place: pair[0] for place, pair in both.items()}),
                mahalanobis=_per_head(subject.checkpoint, {place: pair[1] for place, pair in both.items()}),
                last_layer={"euclidean": float(np.mean(last[0])), "mahalanobis": float(np.mean(last[1]))},
            )
        )
        placed = {head: _in_plane(subject.checkpoint, head, inside, outside) for head in (*most, *least)}
        points[name] = {head: (a, b) for head, (a, b, _) in placed.items()}
        explained[name] = tuple(placed[head][2] for head in (*most, *least))
    pictured = Pictured(method=subject.method, most=_plain(most), least=_plain(least), explained=explained)
    return tuple(rows), pictured if subject.ranked else None, points


def _spread(rows: int) -> Any:
    """Which samples a picture shows: sorted data would show one class."""
    shown = np.zeros(rows, dtype=bool)
    shown[np.linspace(0, rows - 1, min(rows, POINTS)).round().astype(int)] = True
    return shown


def _in_plane(
    checkpoint: Single,
    head: Head,
    inside: Mapping[tuple[str, int], Moments],
    outside: Mapping[tuple[str, int], Moments],
) -> tuple[Doubles, Doubles, float]:
    place = (head.tower, head.layer)
    at = checkpoint.manifest.kept[head.tower][head.layer].index(head.number)
    here, there = (np.stack(each[place].rows)[:, at] for each in (inside, outside))
    return plane(here, there)


def _plain(heads: Iterable[Head]) -> tuple[tuple[str, int, int], ...]:
    return tuple((head.tower, head.layer, head.number) for head in heads)
