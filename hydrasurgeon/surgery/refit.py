"""Repair what pruning cost without training: refit W_O and W_2 by least squares.

A place is a layer's attention or its MLP, which loses heads or neurons; x are the outputs of those
that stay, over the real tokens of the calibration inputs, and W is W_O or W_2. Places follow each
other as inputs run through them.

    min over W, b of  Σ s·‖W x + b − t‖² + λ·‖W − W_O‖²        with λ = 10⁻³ · trace / width
    t = y + (h − h′)/γ        t = y where the branch ends with a norm

y is the output of the unpruned place and h what flows past it in the unpruned model; x and h′
belong to the pruned model whose earlier places are repaired already, so that the fit also takes
back their errors (γ is the branch's LayerScale, 1 without). The weight s of a token is the squared
gradient, with respect to y, of the unpruned model's margin between its two likeliest classes: a
token that the classifier never hears of must not cost anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from hydrasurgeon.anatomy.hooks import removed
from hydrasurgeon.anatomy.layers import attend, attention_half, attention_input, mlp_half
from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import NEURONS, Kept, positions

RIDGE = 1e-3
"""Ridge penalty, relative to the mean square of an input: it pulls a refit towards the weights as
they were.
"""
# Hidden states of calibration batches are kept up to this size; what does not fit is computed
# again.
HELD_BYTES = 1 << 30


class Place(NamedTuple):
    """One of the two residual branches of a layer."""

    layer: int
    neurons: bool

    def out(self, anatomy: Anatomy) -> nn.Linear:
        """Return W_O or W_2."""
        block = anatomy.blocks[self.layer]
        return block.out if self.neurons else block.attention.out

    def group(self, anatomy: Anatomy) -> str:
        """Return the name of its heads or neurons in `Kept`."""
        tower = anatomy.blocks[self.layer].attention.tower
        return f"{tower}{NEURONS}" if self.neurons else tower

    def __str__(self) -> str:
        return f"the {'MLP' if self.neurons else 'attention'} of layer {self.layer}"


@dataclass(frozen=True)
class CalibrationInputs:
    """Inputs on the model's device, as often as they are asked for."""

    inputs: Callable[[], Iterable[Any]]
    batches: int
    tick: Callable[[str, int, int], None] = lambda name, done, total: None


@dataclass(frozen=True)
class Repair:
    """New W_O or W_2, for the heads or neurons at `columns` of its input."""

    columns: Tensor
    weight: Tensor
    bias: Tensor | None


def refit(
    anatomy: Anatomy,
    present: Kept,
    kept: Kept,
    calibration: CalibrationInputs,
    *,
    stored: Callable[[Tensor], Tensor] = lambda values: values,
    unpruned: Unpruned | None = None,
) -> dict[Place, Repair]:
    """Refit the places one after another by least squares.

    `stored` rounds values as the file will hold them, before later places see them. `unpruned`
    holds the outputs that earlier repairs of the same model on the same data have computed.
    """
    lost = lost_places(anatomy, present, kept)
    if unpruned is None:
        unpruned = Unpruned(anatomy, calibration, tuple(lost))
    first = next(iter(lost), Place(0, False))
    students: dict[int, _Student] = {}
    repairs: dict[Place, Repair] = {}
    for place, columns in lost.items():
        out = place.out(anatomy)
        equations = _Equations(int(columns.sum()), out.out_features, centred=out.bias is not None)
        for number, trace in unpruned.traces():
            student = students.get(number)
            if student is None:  # up to there it is the unpruned model
                student = _Student(first, trace.bias, trace.hidden[first])
            student = _advanced(anatomy, student, place, repairs)
            if number in unpruned.held:
                students[number] = student
            equations.add(*_samples(anatomy, trace, student, columns))
            calibration.tick(f"repairing {place}", number + 1, calibration.batches)
        before = (
            out.weight.detach().double().cpu()[:, columns],
            None if out.bias is None else out.bias.detach().double().cpu(),
        )
        weight, bias = equations.solve(*before)
        repairs[place] = Repair(columns, stored(weight), None if bias is None else stored(bias))
    return repairs


def _places(anatomy: Anatomy) -> list[Place]:
    return [
        Place(layer, neurons) for layer in range(len(anatomy.blocks)) for neurons in (False, True)
    ]


def lost_places(anatomy: Anatomy, present: Kept, kept: Kept) -> dict[Place, Tensor]:
    """Return the places that lose heads or neurons, with a mask of the inputs of W that stay."""
    staying = {}
    for place in _places(anatomy):
        group, layer = place.group(anatomy), anatomy.blocks[place.layer].attention.layer
        if group in kept and kept[group][layer] != (row := present[group][layer]):
            stays = torch.zeros(
                len(row), place.out(anatomy).in_features // len(row), dtype=torch.bool
            )
            stays[positions(row, kept[group][layer])] = True
            staying[place] = stays.flatten()
    return staying


def _half(anatomy: Anatomy, place: Place, hidden: Tensor, bias: Tensor | None) -> Tensor:
    block = anatomy.blocks[place.layer]
    return mlp_half(block, hidden) if place.neurons else attention_half(block, hidden, bias)


@dataclass(frozen=True)
class _Trace:
    """Values of the unpruned model on one batch, at each place that matters."""

    bias: Tensor | None
    real: Tensor
    hidden: Mapping[Place, Tensor]
    """h, in front of it."""
    outputs: Mapping[Place, Tensor]
    """y."""
    sensitivity: Mapping[Place, Tensor]

    @property
    def nbytes(self) -> int:
        parts = (self.hidden, self.outputs, self.sensitivity)
        return sum(tensor.nbytes for part in parts for tensor in part.values())


class Unpruned:
    """Outputs of the unpruned model for repairs; held as far as they fit, else computed again."""

    def __init__(
        self,
        anatomy: Anatomy,
        calibration: CalibrationInputs,
        places: Sequence[Place] | None = None,
        room: int | None = None,
    ) -> None:
        self.anatomy = anatomy
        self.calibration = calibration
        self.places = places or [
            place
            for place in _places(anatomy)
            if place.neurons or anatomy.blocks[place.layer].attention.heads
        ]
        self.held: dict[int, _Trace] = {}
        self.room = HELD_BYTES if room is None else room

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(trace.nbytes for trace in self.held.values())

    def traces(self) -> Iterator[tuple[int, _Trace]]:
        """Yield every batch's trace, with its number."""
        inputs: Iterable[Any] = range(self.calibration.batches)
        if len(self.held) < self.calibration.batches:  # else they need not be read again
            inputs = self.calibration.inputs()
        for number, batch in enumerate(inputs):
            trace = self.held.get(number)
            if trace is None:
                trace = _traced(self.anatomy, batch, self.places)
                if self.nbytes + trace.nbytes <= self.room:
                    self.held[number] = trace
            yield number, trace


def _traced(anatomy: Anatomy, inputs: Any, places: Sequence[Place]) -> _Trace:
    """Run one pass forward and one back.

    Each place and token gets the squared gradient of the margin at the place's output.
    """
    with torch.no_grad():
        stack = anatomy.embed(inputs)
    hidden = stack.hidden.detach().requires_grad_(True)
    before, outputs = {}, {}
    with torch.enable_grad():
        for place in _places(anatomy):
            if place in places:
                before[place] = hidden.detach()
                with _watched(place.out(anatomy)) as seen:
                    hidden = _half(anatomy, place, hidden, stack.bias)
                outputs[place] = seen[1]
            else:
                hidden = _half(anatomy, place, hidden, stack.bias)
        logits = anatomy.readout(replace(stack, hidden=hidden)).float()
        if not torch.isfinite(logits).all():
            raise SurgeryError(
                "--compensate lstsq: the model's logits hold NaN or infinity",
                hint="It overflows on this data: use --dtype float32, or check it with eval.",
            )
        best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
        margin = (best[..., 0] - best[..., -1]) if best.shape[-1] == 2 else best[..., 0]
        gradients = torch.autograd.grad(margin.sum(), [*outputs.values()], allow_unused=True)
    sensitivity = {}
    for place, gradient in zip(outputs, gradients, strict=True):
        if gradient is None:
            sensitivity[place] = torch.zeros(stack.hidden.shape[:2], device=hidden.device)
        else:
            sensitivity[place] = gradient.float().square().sum(dim=-1)
    detached = {place: output.detach() for place, output in outputs.items()}
    return _Trace(stack.bias, real_tokens(stack), before, detached, sensitivity)


@dataclass(frozen=True)
class _Student:
    """One batch on its way through the pruned model, in front of the place `at`."""

    at: Place
    bias: Tensor | None
    hidden: Tensor
    """h′."""
    inputs: Tensor | None = None
    """x, of all heads or neurons there are."""


@torch.no_grad()
def _advanced(
    anatomy: Anatomy, student: _Student, to: Place, repairs: Mapping[Place, Repair]
) -> _Student:
    """Advance a batch to a later place, past the places that are repaired."""
    hidden, inputs = student.hidden, student.inputs
    for place in _places(anatomy):
        if not student.at <= place < to:
            continue
        repair = repairs.get(place)
        if repair is None:
            hidden = _half(anatomy, place, hidden, student.bias)
            continue
        if inputs is None or place != student.at:
            inputs = _inputs(anatomy, place, hidden, student.bias)
        bias = None if repair.bias is None else repair.bias.to(inputs)
        columns = repair.columns.to(inputs.device)
        output = linear(inputs[..., columns], repair.weight.to(inputs), bias)
        hidden = _behind(anatomy, place, hidden, output)
    return _Student(to, student.bias, hidden, _inputs(anatomy, to, hidden, student.bias))


def _inputs(anatomy: Anatomy, place: Place, hidden: Tensor, bias: Tensor | None) -> Tensor:
    """Return x, the input of W."""
    block = anatomy.blocks[place.layer]
    with _handed_on(place.out(anatomy)):
        if not place.neurons:
            return attend(block.attention, attention_input(block, hidden), bias)
        inputs: Tensor = block.mlp(block.norm2(hidden) if block.prenorm else hidden)
        return inputs


def _behind(anatomy: Anatomy, place: Place, hidden: Tensor, output: Tensor) -> Tensor:
    """Run the rest of a branch, from the output of W."""
    block = anatomy.blocks[place.layer]
    scale, norm = (block.scale2, block.norm2) if place.neurons else (block.scale1, block.norm1)
    summed: Tensor = hidden + scale(output)
    if block.prenorm:
        return summed
    normed: Tensor = norm(summed)
    return normed


@torch.no_grad()
def _samples(
    anatomy: Anatomy, trace: _Trace, student: _Student, columns: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, t and s of one batch: a row for each real token that matters."""
    place = student.at
    block = anatomy.blocks[place.layer]
    weights = trace.sensitivity[place] * trace.real
    rows = weights > 0
    target = trace.outputs[place][rows].double()
    if not block.sandwiched:
        drift = (trace.hidden[place] - student.hidden)[rows].double()
        branch = block.scale2 if place.neurons else block.scale1
        scale = branch(torch.ones_like(student.hidden[:1, :1])).double().flatten()
        target = target + torch.where(scale == 0, 0.0, drift / scale)
    assert student.inputs is not None
    inputs = student.inputs[rows][:, columns.to(rows.device)].double()
    return inputs, target, weights[rows].double()


class _Equations:
    """Weighted normal equations in float64; their size does not depend on the number of samples."""

    def __init__(self, width: int, outputs: int, *, centred: bool) -> None:
        self.centred = centred
        size = width + outputs
        self.products = torch.zeros(width, size, dtype=torch.float64)
        self.sums = torch.zeros(size, dtype=torch.float64)
        self.total = 0.0

    def add(
        self,
        heads: Float[Tensor, "row width"],
        target: Float[Tensor, "row dim"],
        weights: Float[Tensor, " row"],
    ) -> None:
        columns = torch.cat([heads, target], dim=1)
        weighted = weights[:, None] * heads
        self.products += (weighted.T @ columns).cpu()
        self.sums += (weights @ columns).cpu()
        self.total += float(weights.sum())

    def solve(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Solve for W and b; without data return them unchanged."""
        width = len(self.products)
        if self.total <= 0:
            return weight, bias
        means = self.sums / self.total if self.centred else torch.zeros_like(self.sums)
        products = self.products - self.total * torch.outer(means[:width], means)
        gram, cross = products[:, :width], products[:, width:]
        ridge = RIDGE * float(gram.trace()) / max(1, width)
        if width and ridge > 0:
            # The ridge pulls towards W as it was: directions without data stay as they are.
            right = cross - gram @ weight.T
            weight = weight + torch.linalg.solve(gram + ridge * torch.eye(width).double(), right).T
        if bias is not None:
            bias = means[width:] - weight @ means[:width]
        return weight, bias


@contextlib.contextmanager
def _watched(out: nn.Linear) -> Iterator[list[Tensor]]:
    """Record the input and the output of W within the block."""
    seen: list[Tensor] = []

    def note(_: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[:] = [args[0], output]

    with removed(out.register_forward_hook(note)):
        yield seen


@contextlib.contextmanager
def _handed_on(out: nn.Linear) -> Iterator[None]:
    """Let W pass on its input unchanged within the block."""
    out.forward = _same  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del out.forward


def _same(values: Tensor) -> Tensor:
    return values
