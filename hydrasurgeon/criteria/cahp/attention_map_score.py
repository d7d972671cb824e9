"""CAHP: heads as points, near each other where their attention maps separate the classes alike.

Each head's map over the real tokens becomes 32×32 numbers; per class c they have means μ and
variances s. For each pair of classes and each number, B = ¼(μ₁−μ₂)²/(s₁+s₂) + ½
ln((s₁+s₂)/(2√(s₁s₂))) and the Jeffries–Matusita distance 2(1 − e^−B); all pairs together are the
head's row, and t-SNE lays the rows out in the plane. What is chosen from points and weights is in
choice.py.

A head's weight is the mean |∂L/∂m_h| over a quarter of the batches, L a batch's mean cross-entropy.
The mean of a batch comes before the absolute value, so the weights depend on how large batches are:
they hold 32 samples in the order of the data, as the authors' do, in whatever batches the model
runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from hydrasurgeon.anatomy.hooks import masked, removed
from hydrasurgeon.anatomy.layers import run_block
from hydrasurgeon.anatomy.maps import attention_maps, heads_from_maps, real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Attention
from hydrasurgeon.criteria.base import Subject, Verdict
from hydrasurgeon.criteria.cahp.choice import DEGREE, choose, number_of_clusters
from hydrasurgeon.errors import DataError, SurgeryError
from hydrasurgeon.heads import Head, count, drop
from hydrasurgeon.lookup import need
from hydrasurgeon.statistics.probabilities import true_classes
from hydrasurgeon.tasks.base import need_feature

EDGE = 32
"""Rows and columns that every attention map is resized to."""
FLOOR = 1e-6
"""Smallest variance: a class with one sample has none."""
PERPLEXITY = 10
"""Perplexity of t-SNE: about how many heads count as neighbours of one."""
ITERATIONS = 1000
"""Iterations of t-SNE."""
# Statistics are held for so many classes; from more, so many are drawn by the seed.
MOST_CLASSES = 64

BATCH = 32
"""Samples whose mean loss is differentiated at once."""
# The authors take the first quarter. Data in class folders comes sorted by class, so it is every
# fourth batch here.
EVERY = 4

Array = NDArray[np.float64]


def score(subject: Subject) -> Verdict:
    need("sklearn", "kmedoids", "kneed", purpose="--method cahp")
    model, sites = subject.module, subject.sites
    model.requires_grad_(False)
    manifest = subject.checkpoint.manifest
    anatomy = subject.checkpoint.family.anatomy(model)
    reached = {block.attention.tower for block in anatomy.blocks}
    if beyond := sorted(set(subject.towers) - reached):
        raise SurgeryError(
            f"the attention maps of tower {beyond[0]} cannot be read: no data runs through it",
            hint=f"Use another --method, or --tower {' or '.join(sorted(reached))}.",
        )
    heads = [Head(s.tower, s.layer, h) for s in sites for h in s.heads]
    need_feature(subject.task, "--method cahp", subject.checkpoint.name)
    classes = _classes(manifest.model.choices, subject.run.seed)
    moments = ClassMoments(len(heads), classes)
    weigher = Weigher(model, sites, subject.samples, subject.losses)
    for i, (inputs, labels) in enumerate(subject.batches("attention maps")):
        if i == 0:
            _check_maps(model, anatomy, inputs)
        _observe(anatomy, inputs, true_classes(labels.cpu().numpy()), moments)
        weigher.add(inputs, labels)
    means, variances = moments.finish()
    if not (np.isfinite(means).all() and np.isfinite(variances).all()):
        raise SurgeryError(
            "--method cahp: the attention maps hold NaN or infinity",
            hint="The model overflows on this data: use --dtype float32, or check it with eval.",
        )
    points = layout(jeffries_matusita(means, variances), seed=subject.run.seed)
    shares = weigher.weights().numpy()
    low, high = shares.min(), shares.max()
    shares = (shares - low) / (high - low) if high > low else np.ones_like(shares)
    movable = [i for i, head in enumerate(heads) if head.layer in subject.layers]
    candidates = [heads[i] for i in movable]
    clusters = None if subject.keep is None else number_of_clusters(candidates, subject.keep, None)
    degree = subject.scoring.degree or DEGREE
    weights = shares[movable].tolist()
    choice = choose(candidates, points[movable], weights, clusters=clusters, degree=degree)
    kept = drop(manifest.kept, set(candidates) - set(choice.stay))
    settings = {
        "automatic": choice.automatic,
        "knee": choice.knee,
        "clusters": [[list(head) for head in group] for group in choice.clusters],
        "curve": [[k, round(height, 6)] for k, height in choice.curve],
        "points": [[*head, float(x), float(y)] for head, (x, y) in zip(heads, points, strict=True)],
        "kept": {tower: [list(row) for row in rows] for tower, rows in kept.items()},
        "count": count(kept),
        "layers": sorted(subject.layers),
        "classes": [int(c) for c in moments.used],
        "seed": subject.run.seed,
    }
    if degree != DEGREE:
        settings["degree"] = degree
    share_iterator = iter(shares.tolist())
    return Verdict(
        {(s.tower, s.layer): [next(share_iterator) for _ in s.heads] for s in sites}, settings
    )


def _classes(count: int, seed: int) -> list[int]:
    if count <= MOST_CLASSES:
        return list(range(count))
    drawn = np.random.default_rng(seed).permutation(count)[:MOST_CLASSES]
    return sorted(int(c) for c in drawn)


@torch.no_grad()
def _check_maps(model: nn.Module, anatomy: Anatomy, inputs: Any) -> None:
    """Refuse a model whose attention maps, times its values, do not give the input of its W_O."""
    seen: dict[int, Tensor] = {}

    def note(layer: int) -> Callable[..., None]:
        return lambda _, args: seen.update({layer: args[0]})

    hooks = [
        block.attention.out.register_forward_pre_hook(note(layer))
        for layer, block in enumerate(anatomy.blocks)
    ]
    with removed(*hooks):
        model(inputs)
    for layer, hidden, site, bias, real in _walk(anatomy, inputs):
        if not site.heads:
            continue
        computed, hooked = heads_from_maps(site, hidden, bias).float(), seen.get(layer)
        size = 0.0 if hooked is None else float(hooked[real].float().abs().max())
        if (
            hooked is None
            or float((computed - hooked.float())[real].abs().max()) > 0.05 * size + 1e-6
        ):
            raise SurgeryError(
                f"the attention maps of {site.tower} layer {site.layer} cannot be read: "
                "softmax(q kᵀ) v is not what its output projection is given",
                hint="CAHP needs plain softmax attention: use another --method.",
            )


def _walk(anatomy: Anatomy, inputs: Any) -> Any:
    """Yield layer after layer: number, input of the attention, site, bias and real tokens."""
    stack = anatomy.embed(inputs)
    hidden, real = stack.hidden, real_tokens(stack)
    for layer, block in enumerate(anatomy.blocks):
        attended = block.norm1(hidden) if block.prenorm else hidden
        yield layer, attended, block.attention, stack.bias, real
        hidden = run_block(block, hidden, stack.bias)


@torch.no_grad()
def _observe(
    anatomy: Anatomy, inputs: Any, labels: NDArray[np.int64], moments: ClassMoments
) -> None:
    """Add up one batch's maps by class; each covers its own real tokens and is resized."""
    rows: list[Tensor] = []
    for _, hidden, site, bias, real in _walk(anatomy, inputs):
        if site.heads:
            rows.append(_resized(attention_maps(site, hidden, bias), real).cpu())
    moments.add(torch.cat(rows, dim=1).numpy(), labels)


def _resized(maps: Tensor, real: Tensor) -> Tensor:
    """Resize [batch, head, token, token] to [batch, head, 1024], bilinearly, without the padding."""

    def resize(square: Tensor) -> Tensor:
        size = (EDGE, EDGE)
        return interpolate(square, size=size, mode="bilinear", align_corners=False).flatten(-2)

    if bool(real.all()):
        return resize(maps)
    resized = [resize(m[None, :, keep][..., keep]) for m, keep in zip(maps, real, strict=True)]
    return torch.cat(resized)


class ClassMoments:
    """Streaming sums per head, class and number; mean and unbiased variance at the end."""

    def __init__(self, heads: int, classes: Sequence[int], width: int = EDGE * EDGE) -> None:
        self.classes = list(classes)
        self.row = {c: i for i, c in enumerate(self.classes)}
        self.counts = np.zeros(len(self.classes), dtype=np.int64)
        self.sums = np.zeros((len(self.classes), heads, width))
        self.squares = np.zeros_like(self.sums)
        self.used: list[int] = []

    def add(self, maps: NDArray[Any], labels: NDArray[np.int64]) -> None:
        for label in np.unique(labels):
            if (at := self.row.get(int(label))) is not None:
                class_maps = maps[labels == label].astype(np.float64)
                self.counts[at] += len(class_maps)
                self.sums[at] += class_maps.sum(axis=0)
                self.squares[at] += np.square(class_maps).sum(axis=0)

    def finish(self) -> tuple[Array, Array]:
        """Return means and variances, [class, head, number], of the classes in the data.

        `used` then holds the numbers of these classes.
        """
        present = np.flatnonzero(self.counts)
        self.used = [self.classes[i] for i in present]
        if len(present) < 2:
            raise DataError(
                "CAHP compares classes: the data holds fewer than two of them",
                hint="Give more data, or a higher --limit.",
            )
        n = self.counts[present, None, None]
        means = self.sums[present] / n
        # A class with one sample has no variance, and gets the floor.
        variances: Array = (self.squares[present] - n * np.square(means)) / np.maximum(n - 1, 1)
        return means, np.maximum(variances, FLOOR)


def jeffries_matusita(means: Array, variances: Array) -> Array:
    """Return the Euclidean distances between the heads' rows.

    Only one pair of classes is in memory at a time.
    """
    heads = means.shape[1]
    squared = np.zeros((heads, heads))
    for one, two in itertools.combinations(range(len(means)), 2):
        sums = variances[one] + variances[two]
        apart = 0.25 * np.square(means[one] - means[two]) / sums
        apart += 0.5 * np.log(sums / (2 * np.sqrt(variances[one] * variances[two])))
        row = 2 * (1 - np.exp(-apart))
        row -= row.mean(axis=0)  # distances do not notice, and their rounding gains
        norms = np.square(row).sum(axis=1)
        squared += norms[:, None] + norms[None] - 2 * row @ row.T
    np.fill_diagonal(squared, 0)
    distances: Array = np.sqrt(np.maximum(squared, 0))
    return distances


def layout(distances: Array, *, seed: int) -> Array:
    """Lay the heads out in the plane by t-SNE, from the distances' two principal coordinates."""
    heads = len(distances)
    if heads < 3 or not distances.any():
        line: Array = np.zeros((heads, 2))
        line[:, 0] = np.arange(heads) * float(distances.any())
        return line
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centred = np.eye(heads) - 1 / heads
    values, vectors = np.linalg.eigh(-0.5 * centred @ np.square(distances) @ centred)
    start = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 0))
    start *= np.sign(start[np.abs(start).argmax(axis=0), [0, 1]])
    spread = start[:, 0].std()
    tsne = TSNE(
        perplexity=min(PERPLEXITY, heads - 1),
        max_iter=ITERATIONS,
        metric="precomputed",
        init=(start / spread * 1e-4 if spread > 0 else start).astype(np.float32),
        random_state=seed,
    )
    # One thread: sums that several threads share come out differently each time, and t-SNE makes
    # much of it.
    with threadpool_limits(1):
        placed = tsne.fit_transform(distances)
    points: Array = np.round(placed.astype(np.float64), 4)
    return points


class Weigher:
    """Adds up mask gradients of the batches that count, as the samples come."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Attention],
        samples: int,
        losses: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.model, self.sites, self.losses = model, sites, losses
        batches = -(-samples // BATCH)
        self.weighed = range(0, EVERY * max(1, batches // EVERY), EVERY)
        self.seen = 0
        self._masks = {
            (s.tower, s.layer): torch.ones(
                len(s.heads), device=s.out.weight.device, requires_grad=True
            )
            for s in sites
            if s.heads
        }
        self._samples = 0
        self._total = torch.zeros(
            sum(len(mask) for mask in self._masks.values()), dtype=torch.float64
        )
        self._batches = 0

    def add(self, inputs: Any, labels: Tensor) -> None:
        """Add the next samples of the data, in any number."""
        for batch, part in self._parts(len(labels)):
            if batch in self.weighed:
                with masked(self.sites, self._masks):
                    logits = self.model(_slice(inputs, part))
                    # A sum, so that a batch may come in pieces.
                    self.losses(logits, labels[part]).sum().backward()
                self._samples += part.stop - part.start
            if self.seen % BATCH == 0:
                self._close()

    def weights(self) -> Float[Tensor, " head"]:
        """Return the weights of all heads, site after site."""
        self._close()
        return self._total / max(1, self._batches)

    def _parts(self, samples: int) -> Iterator[tuple[int, slice]]:
        """Cut the samples where a batch of 32 ends; yield each part with its batch's number."""
        start = 0
        while start < samples:
            batch, place = divmod(self.seen, BATCH)
            stop = min(samples, start + BATCH - place)
            self.seen += stop - start
            yield batch, slice(start, stop)
            start = stop

    def _close(self) -> None:
        """Finish a batch of 32, or the last one of the data."""
        if not self._samples:
            return
        gradients = [m.grad for m in self._masks.values() if m.grad is not None]
        self._total += torch.cat(gradients).double().cpu().abs() / self._samples
        for mask in self._masks.values():
            mask.grad = None
        self._samples, self._batches = 0, self._batches + 1


def _slice(inputs: Any, part: slice) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[part] for name, value in inputs.items()}
    return inputs[part]
