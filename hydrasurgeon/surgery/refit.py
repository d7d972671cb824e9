"""Repair what pruning cost without training: fold means into the output bias, or refit W_O by least squares.

In a layer that loses heads, x are the outputs of the heads that stay, over the real tokens of the calibration inputs.

    mean    b ← b + W_gone · mean(x_gone)
    lstsq   min over W, b of  Σ s·‖W x + b − t‖² + λ·‖W − W_O‖²        with λ = 10⁻³ · trace / width
            t = y + (h − h′)/γ

y is the output of the unpruned layer and h what flows into it in the unpruned model; x and h′ belong to the pruned
model whose earlier layers are repaired already, so that the fit also takes back their errors (γ is the branch's
LayerScale, 1 without). The weight s of a token is the squared gradient, with respect to y, of the unpruned model's
margin between its two likeliest classes: a token that the classifier never hears of must not cost anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from hydrasurgeon.anatomy.hooks import removed
from hydrasurgeon.anatomy.layers import attend, run_block
from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Kept, positions

RIDGE = 1e-3
"""Ridge penalty, relative to the mean square of an input: it pulls a refit towards the weights as they were."""
# Hidden states of calibration batches are kept up to this size; what does not fit is computed again.
HELD_BYTES = 1 << 30


@dataclass(frozen=True)
class Calibration:
    """Inputs on the model's device, as often as they are asked for."""

    inputs: Callable[[], Iterable[Any]]
    batches: int
    tick: Callable[[str, int, int], None] = lambda what, done, total: None


@dataclass(frozen=True)
class Repair:
    """What replaces one layer's output projection, for the heads at `columns` of the unpruned one's input."""

    columns: Tensor
    weight: Tensor
    bias: Tensor | None


def fold_means(anatomy: Anatomy, kept: Kept, calibration: Calibration) -> dict[int, Repair]:
    """`mean`: the removed heads' mean output through their columns of W_O, added to the bias."""
    lost = _lost(anatomy, kept)
    for layer in lost:
        if anatomy.blocks[layer].attention.out.bias is None:
            raise SurgeryError(
                f"--compensate mean: layer {layer} has no output bias to fold the means into",
                hint="Use --compensate lstsq, which can do without.",
            )
    sums = {layer: torch.zeros(()) for layer in lost}
    tokens = 0
    with torch.no_grad():
        for done, inputs in enumerate(calibration.inputs(), 1):
            stack = anatomy.embed(inputs)
            hidden, real = stack.hidden, real_tokens(stack)
            tokens += int(real.sum())
            for layer, block in enumerate(anatomy.blocks):
                with _watched(block.attention) as seen:
                    hidden = run_block(block, hidden, stack.bias)
                if layer in lost:
                    sums[layer] = sums[layer] + seen[0][real].double().sum(dim=0).cpu()
            calibration.tick("means of the heads", done, calibration.batches)
    repairs = {}
    for layer, columns in lost.items():
        out = anatomy.blocks[layer].attention.out
        weight, gone = out.weight.detach().double().cpu(), ~columns
        folded = out.bias.detach().double().cpu() + weight[:, gone] @ (sums[layer] / tokens)[gone]
        repairs[layer] = Repair(columns, weight[:, columns], folded)
    return repairs


def refit(
    anatomy: Anatomy,
    kept: Kept,
    calibration: Calibration,
    *,
    stored: Callable[[Tensor], Tensor] = lambda values: values,
) -> dict[int, Repair]:
    """`lstsq`: layer by layer; `stored` rounds values as the file will hold them, before later layers see them."""
    lost = _lost(anatomy, kept)
    states = _States(anatomy, tuple(lost), calibration)
    repairs: dict[int, Repair] = {}
    for layer, columns in lost.items():
        block = anatomy.blocks[layer]
        out = block.attention.out
        equations = _Equations(int(columns.sum()), out.out_features, centred=out.bias is not None)
        for state in states.at(layer, repairs):
            equations.add(*_samples(block, state, layer, columns))
        before = (
            out.weight.detach().double().cpu()[:, columns],
            None if out.bias is None else out.bias.detach().double().cpu(),
        )
        weight, bias = equations.solve(*before)
        repairs[layer] = Repair(columns, stored(weight), None if bias is None else stored(bias))
    return repairs


def _lost(anatomy: Anatomy, kept: Kept) -> dict[int, Tensor]:
    """The layers that lose heads: which inputs of W_O stay."""
    staying = {}
    for layer, block in enumerate(anatomy.blocks):
        site = block.attention
        row = kept[site.tower][site.layer]
        if len(row) != len(site.heads):
            stays = torch.zeros(len(site.heads), site.head_dim, dtype=torch.bool)
            stays[positions(site.heads, row)] = True
            staying[layer] = stays.flatten()
    return staying


@dataclass(frozen=True)
class _State:
    """One batch on its way through both models, in front of `layer`."""

    layer: int
    bias: Tensor | None
    real: Tensor
    sensitivity: Mapping[int, Tensor]
    hidden: Tensor
    """h, of the unpruned model."""
    repaired: Tensor
    """h′, of the pruned one."""

    @property
    def nbytes(self) -> int:
        held = [self.hidden, self.repaired, self.real, *self.sensitivity.values()]
        return sum(t.nbytes for t in held + ([] if self.bias is None else [self.bias]))


class _States:
    """The batches in front of a layer; held between layers as far as they fit, else computed again."""

    def __init__(self, anatomy: Anatomy, lost: tuple[int, ...], calibration: Calibration) -> None:
        self.anatomy, self.lost, self.calibration = anatomy, lost, calibration
        self.held: dict[int, _State] = {}
        self.room = HELD_BYTES

    def at(self, layer: int, repairs: Mapping[int, Repair]) -> Iterator[_State]:
        total = self.calibration.batches
        # With every batch held, the inputs need not be read again.
        whole: Iterable[Any] = self.calibration.inputs() if len(self.held) < total else range(total)
        for i, inputs in enumerate(whole):
            state = self.held.get(i)
            if state is None:
                state = _started(self.anatomy, inputs, self.lost)
            state = _advanced(self.anatomy, state, layer, repairs)
            if i in self.held:
                self.held[i] = state
            elif layer == self.lost[0] and state.nbytes <= self.room:
                self.held[i] = state
                self.room -= state.nbytes
            yield state
            self.calibration.tick(f"repairing layer {layer}", i + 1, total)


def _started(anatomy: Anatomy, inputs: Any, lost: Sequence[int]) -> _State:
    with torch.no_grad():
        stack = anatomy.embed(inputs)
    real = real_tokens(stack)
    return _State(
        layer=0,
        bias=stack.bias,
        real=real,
        sensitivity=_sensitivity(anatomy, stack, lost),
        hidden=stack.hidden,
        repaired=stack.hidden,
    )


def _sensitivity(anatomy: Anatomy, stack: Stack, lost: Sequence[int]) -> dict[int, Tensor]:
    """Per layer and token, the squared gradient of the unpruned model's margin at the attention's output."""
    hidden = stack.hidden.detach().requires_grad_(True)
    outputs = {}
    with torch.enable_grad():
        for layer, block in enumerate(anatomy.blocks):
            with _watched(block.attention) as seen:
                hidden = run_block(block, hidden, stack.bias)
            outputs[layer] = seen[1]
        logits = anatomy.readout(replace(stack, hidden=hidden)).float()
        if not torch.isfinite(logits).all():
            raise SurgeryError(
                "--compensate lstsq: the model's logits hold NaN or infinity",
                hint="It overflows on this data: use --dtype float32, or check it with eval.",
            )
        best = logits.topk(min(2, logits.shape[-1]), dim=-1).values
        margin = (best[:, 0] - best[:, -1]) if best.shape[-1] == 2 else best[:, 0]
        gradients = torch.autograd.grad(margin.sum(), [outputs[layer] for layer in lost], allow_unused=True)
    return {
        layer: (
            torch.zeros(stack.hidden.shape[:2], device=hidden.device)
            if gradient is None
            else gradient.float().square().sum(dim=-1)
        )
        for layer, gradient in zip(lost, gradients, strict=True)
    }


@torch.no_grad()
def _advanced(anatomy: Anatomy, state: _State, layer: int, repairs: Mapping[int, Repair]) -> _State:
    hidden, repaired = state.hidden, state.repaired
    for at in range(state.layer, layer):
        block = anatomy.blocks[at]
        after = run_block(block, hidden, state.bias)
        if repaired is hidden and at not in repairs:
            repaired = after  # nothing has been lost so far
        else:
            with _replaced(block.attention, repairs.get(at)):
                repaired = run_block(block, repaired, state.bias)
        hidden = after
    return replace(state, layer=layer, hidden=hidden, repaired=repaired)


@torch.no_grad()
def _samples(block: Block, state: _State, layer: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, t and s of one batch: a row for each real token that matters."""

    def watched(hidden: Tensor) -> list[Tensor]:
        with _watched(block.attention) as seen:
            attend(block.attention, block.norm1(hidden) if block.prenorm else hidden, state.bias)
        return seen

    weights = state.sensitivity[layer] * state.real
    rows = weights > 0
    target = watched(state.hidden)[1][rows].double()
    if state.repaired is not state.hidden:
        drift = (state.hidden - state.repaired)[rows].double()
        scale = block.scale1(torch.ones_like(state.hidden[:1, :1])).double().flatten()
        target = target + torch.where(scale == 0, 0.0, drift / scale)
    heads = watched(state.repaired)[0][rows][:, columns.to(rows.device)].double()
    return heads, target, weights[rows].double()


class _Equations:
    """Weighted normal equations in float64; their size does not depend on the number of samples."""

    def __init__(self, width: int, outputs: int, *, centred: bool) -> None:
        self.centred = centred
        size = width + outputs
        self.products = torch.zeros(width, size, dtype=torch.float64)
        self.sums = torch.zeros(size, dtype=torch.float64)
        self.total = 0.0

    def add(
        self, heads: Float[Tensor, "row width"], target: Float[Tensor, "row dim"], weights: Float[Tensor, " row"]
    ) -> None:
        both = torch.cat([heads, target], dim=1)
        weighted = weights[:, None] * heads
        self.products += (weighted.T @ both).cpu()
        self.sums += (weights @ both).cpu()
        self.total += float(weights.sum())

    def solve(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """W and b; what they were before where nothing can be said."""
        width = len(self.products)
        if self.total <= 0:
            return weight, bias
        means = self.sums / self.total if self.centred else torch.zeros_like(self.sums)
        products = self.products - self.total * torch.outer(means[:width], means)
        gram, cross = products[:, :width], products[:, width:]
        ridge = RIDGE * float(gram.trace()) / max(1, width)
        if width and ridge > 0:
            # The ridge pulls towards W_O as it was: directions without data stay as they are.
            right = cross - gram @ weight.T
            weight = weight + torch.linalg.solve(gram + ridge * torch.eye(width).double(), right).T
        if bias is not None:
            bias = means[width:] - weight @ means[:width]
        return weight, bias


@contextlib.contextmanager
def _watched(site: Attention) -> Iterator[list[Tensor]]:
    """Within the block, what goes into W_O and what comes out of it is noted: [heads, output]."""
    seen: list[Tensor] = []

    def note(_: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen[:] = [args[0], output]

    with removed(site.out.register_forward_hook(note)):
        yield seen


@contextlib.contextmanager
def _replaced(site: Attention, repair: Repair | None) -> Iterator[None]:
    """Within the block, the site's W_O is the repaired one: only the heads that stay are read."""

    def instead(_: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        assert repair is not None
        bias = None if repair.bias is None else repair.bias.to(output)
        columns = repair.columns.to(output.device)
        return linear(args[0][..., columns], repair.weight.to(output), bias)

    hooks = [] if repair is None else [site.out.register_forward_hook(instead)]
    with removed(*hooks):
        yield
