"""One model looked into: passes over clean, noisy and OOD data, the report they amount to, and its
picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.data import Batches, Samples, fit_classes, moved, open_data
from hydrasurgeon.errors import DataError, SurgeryError
from hydrasurgeon.files.manifest import SingleManifest
from hydrasurgeon.heads import Head
from hydrasurgeon.measuring.sets import in_samples, parse_ood
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.runtime.torch_tensors import device_of, dtype_of
from hydrasurgeon.tasks import task_of
from hydrasurgeon.tuning.losses import losses_of
from probing.curvature import (
    Curvature,
    Weights,
    curvature,
    dot,
    loss_of,
    means_by_head,
)
from probing.options import ProbeOptions
from probing.plots import figure, save_figure
from probing.report import (
    Gradient,
    Hessian,
    Losses,
    PerHead,
    Pictured,
    ProbeReport,
    Proposition,
    Separation,
)
from probing.separation import Doubles, Moments, distances, head_moments, plane

AT_ONCE = 16
"""Samples in one pass, if nobody says: the graph of a gradient is large."""
SHOWN = 6
"""Heads of each kind in the picture (paper, Figure 4)."""
POINTS = 400
"""Samples of each set in the picture, spread over it."""

Planes = dict[str, dict[Head, tuple[Doubles, Doubles]]]
"""OOD set → head → where ID and OOD samples lie in its plane."""
Passes = Callable[[Samples, str], Iterator[tuple[Any, Any, Any]]]
"""Samples and the name of a pass → inputs, labels and places of the samples."""


def look(
    checkpoint: Single,
    options: ProbeOptions,
    *,
    method: str,
    removed: Sequence[Head],
    ranked: Sequence[Head],
    noisy: Callable[[Samples], Samples],
    settings: dict[str, Any],
) -> tuple[ProbeReport, Planes]:
    """Return both halves of the report; `removed` lists the pruned heads, `ranked` heads by rising
    importance.
    """
    clean, spoiled, ood = _data(checkpoint, options, noisy)
    family, device = checkpoint.family, device_of(options.device)
    module = live_module(checkpoint).to(device=device, dtype=dtype_of(options.dtype))
    module.requires_grad_(False)
    anatomy, transform = (
        family.anatomy(module),
        family.transform(checkpoint.manifest.model, files=checkpoint.files),
    )

    def passes(samples: Samples, stage: str) -> Iterator[tuple[Any, Any, Any]]:
        """Yield batches in the order of the samples, so that clean and noisy ones meet in the same
        batches.
        """
        loader = Batches(
            samples, transform, batch_size=options.batch_size or AT_ONCE, skip_bad=options.skip_bad
        )
        for done, batch in enumerate(loader, 1):
            labels = None if batch.labels is None else batch.labels.to(device)
            yield moved(batch.inputs, device, dtype_of(options.dtype)), labels, batch.index
            options.tick(stage, done, len(loader))

    def moments(samples: Samples, stage: str) -> dict[tuple[str, int], Moments]:
        shown = np.zeros(len(samples), dtype=bool)
        # Spread: of sorted data the first would show one class.
        shown[np.linspace(0, len(samples) - 1, min(len(samples), POINTS)).round().astype(int)] = (
            True
        )
        return head_moments(
            module, anatomy, ((inputs, at) for inputs, _, at in passes(samples, stage)), shown
        )

    losses, proofs = _proposition(checkpoint, module, passes, clean, spoiled, removed, options)
    notes: tuple[str, ...] = () if clean.note is None else (clean.note,)
    notes += tuple(
        in_samples(clean, ood, harm="what is the same in both makes every distance smaller")
    )
    if losses.gap == 0 == losses.gap_pruned:
        notes += (
            f"{spoiled.spec} costs the model exactly what {clean.spec} does: no noise, which "
            "shows nothing of"
            " Proposition 1",
        )
    most, least = ranked[: -SHOWN - 1 : -1], ranked[:SHOWN]
    separation, planes, explained = _separation(
        checkpoint.manifest, moments, clean, ood, (*most, *least)
    )
    proposition = Proposition(
        method=method,
        removed=tuple(removed),
        clean=clean.spec,
        noisy=spoiled.spec,
        draws=options.draws,
        losses=losses,
        **proofs,
    )
    pictured = Pictured(method=method, most=tuple(most), least=tuple(least), explained=explained)
    report = ProbeReport(
        name=checkpoint.name.removesuffix(".safetensors"),
        settings=settings,
        proposition=proposition,
        separation=separation,
        pictured=pictured if ranked and ood else None,
        notes=notes,
    )
    return report, planes


def _data(
    checkpoint: Single, options: ProbeOptions, noisy: Callable[[Samples], Samples]
) -> tuple[Samples, Samples, list[tuple[str, Samples]]]:
    """Clean and noisy samples, and the OOD sets by name."""
    about = checkpoint.manifest.model
    clean = open_data(str(options.data), limit=options.limit, seed=options.seed, model=about)
    spoiled = fit_classes(noisy(clean), about)
    named = [parse_ood(entry) for entry in options.ood]
    ood = [
        (name, open_data(spec, limit=options.limit, seed=options.seed)) for _, name, spec in named
    ]
    widest = max(size.head_dim for size in checkpoint.manifest.towers.values())
    if ood and len(clean) <= widest:
        raise DataError(
            f"{clean.spec}: {len(clean)} samples have no covariance of {widest} dimensions",
            hint=f"Give more than {widest}.",
        )
    return clean, spoiled, ood


def _proposition(
    checkpoint: Single,
    module: Any,
    passes: Passes,
    clean: Samples,
    noisy: Samples,
    removed: Sequence[Head],
    options: ProbeOptions,
) -> tuple[Losses, dict[str, Any]]:
    """Return the losses and the conditions of Proposition 1: two passes with gradients, and two
    without the removed heads.
    """
    sites = checkpoint.family.anatomy(module).sites
    weights = Weights.of(sites)
    removal = weights.removal(removed)
    sample_losses = losses_of(task_of(checkpoint.manifest.model)).losses
    how: dict[str, Any] = {"draws": options.draws, "seed": options.seed, "losses": sample_losses}

    def labelled(samples: Samples, stage: str) -> Iterator[tuple[Any, Tensor]]:
        return ((inputs, labels) for inputs, labels, _ in passes(samples, stage))

    plain, spoiled = (
        curvature(module, weights, labelled(samples, stage), removal, **how)
        for samples, stage in ((clean, "clean data"), (noisy, "noisy data"))
    )
    with ablated(sites, removed):
        pruned = loss_of(module, labelled(clean, "clean, pruned"), sample_losses)
        both_lost = loss_of(module, labelled(noisy, "noisy, pruned"), sample_losses)
    gap, gap_pruned = spoiled.loss - plain.loss, both_lost - pruned
    measured = (plain.loss, spoiled.loss, pruned, both_lost, *plain.means, *spoiled.means)
    if not all(map(math.isfinite, measured)):
        raise SurgeryError(
            f"probe: losses or second derivatives of {checkpoint.name} are not finite",
            hint=(
                "Its weights hold NaN or infinity (`hydrasurgeon verify` names the tensors), or "
                "the model overflows."
            ),
        )
    losses = Losses(
        clean=plain.loss,
        noisy=spoiled.loss,
        clean_pruned=pruned,
        noisy_pruned=both_lost,
        gap=gap,
        gap_pruned=gap_pruned,
        widens=gap_pruned >= gap,
    )
    uphill = dot(spoiled.gradient, removal)
    gradient = Gradient(
        noisy=uphill,
        clean=dot(plain.gradient, removal),
        noisy_norm=dot(spoiled.gradient, spoiled.gradient) ** 0.5,
        clean_norm=dot(plain.gradient, plain.gradient) ** 0.5,
        removal_norm=dot(removal, removal) ** 0.5,
        holds=uphill >= 0,
    )
    hessian = _hessian(checkpoint.manifest, weights, plain, spoiled)
    return losses, {"samples": plain.samples, "gradient": gradient, "hessian": hessian}


def _hessian(
    manifest: SingleManifest, weights: Weights, plain: Curvature, spoiled: Curvature
) -> Hessian:
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
        heads=_per_head(manifest, by_head),
        mean_holds=mean > 0,
        along_holds=along > 0,
    )


def _per_head(manifest: SingleManifest, rows: Mapping[tuple[str, int], Sequence[float]]) -> PerHead:
    """Return the positions of the remaining heads, by their number in the original model."""
    numbers: PerHead = {}
    for tower in (tower for tower in manifest.towers if any(name == tower for name, _ in rows)):
        layers = [
            dict(zip(kept, rows.get((tower, layer), ()), strict=False))
            for layer, kept in enumerate(manifest.kept[tower])
        ]
        numbers[tower] = tuple(
            tuple(row.get(h) for h in range(manifest.towers[tower].heads)) for row in layers
        )
    return numbers


def _separation(
    manifest: SingleManifest,
    moments: Callable[[Samples, str], dict[tuple[str, int], Moments]],
    clean: Samples,
    ood: Sequence[tuple[str, Samples]],
    shown: Sequence[Head],
) -> tuple[tuple[Separation, ...], Planes, dict[str, tuple[float, ...]]]:
    """Return the distances for each OOD set, and the planes of the shown heads with their
    explained variance.
    """
    inside = moments(clean, "heads on the data") if ood else {}
    rows: list[Separation] = []
    planes: Planes = {}
    explained: dict[str, tuple[float, ...]] = {}
    for name, samples in ood:
        outside = moments(samples, f"heads on {name}")
        by_layer = {place: distances(inside[place], outside[place]) for place in inside}
        last = by_layer[max(by_layer, key=lambda place: place[1])]
        rows.append(
            Separation(
                name=name,
                samples=len(samples),
                euclidean=_per_head(manifest, {place: pair[0] for place, pair in by_layer.items()}),
                mahalanobis=_per_head(
                    manifest, {place: pair[1] for place, pair in by_layer.items()}
                ),
                last_layer={
                    "euclidean": float(np.mean(last[0])),
                    "mahalanobis": float(np.mean(last[1])),
                },
            )
        )
        planes[name], shares = {}, []
        for head in shown:
            place, at = (
                (head.tower, head.layer),
                manifest.kept[head.tower][head.layer].index(head.number),
            )
            here, there, share = plane(
                *(
                    np.stack(moments_by_layer[place].rows)[:, at]
                    for moments_by_layer in (inside, outside)
                )
            )
            planes[name][head] = here, there
            shares.append(share)
        explained[name] = tuple(shares)
    return tuple(rows), planes, explained


ACROSS = 3
"""Heads in a row of each half."""
SQUARE = 1.7
"""Inches of one head's plane."""


def draw_probe(pictured: Pictured, planes: Planes, path: Path) -> None:
    """Draw the most important heads on the left and the least important on the right. Equal
    numbers give equal bytes.
    """
    import matplotlib

    down = math.ceil(max(len(pictured.most), len(pictured.least), 1) / ACROSS)
    with matplotlib.rc_context({"font.size": 8}):
        drawn = figure(2 * ACROSS * SQUARE + 0.4, (down * SQUARE + 0.6) * len(planes))
        parts = drawn.subfigures(len(planes), 1, squeeze=False)[:, 0]
        for part, (name, points) in zip(parts, planes.items(), strict=True):
            halves = zip(
                part.subfigures(1, 2),
                ("most", "least"),
                (pictured.most, pictured.least),
                strict=True,
            )
            for half, title, heads in halves:
                half.suptitle(f"{title} important heads by {pictured.method}; ID and {name}")
                grid = half.subplots(down, ACROSS, squeeze=False).ravel()
                for place in grid[len(heads) :]:
                    place.set_axis_off()
                for place, entry in zip(grid, heads, strict=False):
                    head = Head(*entry)
                    for rows, colour, marker, label in zip(
                        points[head], ("C0", "C1"), "ox", ("ID", name), strict=True
                    ):
                        look = {
                            "s": 5,
                            "c": colour,
                            "marker": marker,
                            "alpha": 0.6,
                            "linewidths": 0.7,
                        }
                        place.scatter(rows[:, 0], rows[:, 1], label=label, **look)
                    place.set(title=f"layer {head.layer}, head {head.number}", xticks=[], yticks=[])
                if heads:
                    grid[0].legend(fontsize=6, markerscale=2, framealpha=0.8)
        save_figure(drawn, path)
