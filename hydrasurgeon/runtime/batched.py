"""The layers of M members as batched products: one launch where there would be M.

Parameters that each member has for itself lie side by side in one tensor, of which the members' own
become views; only where members keep different numbers of heads are rows copied, and filled up with
heads that are all zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn.functional import layer_norm, linear, pad

from hydrasurgeon.anatomy.layers import (
    after_attention,
    attention_input,
    layer_bias,
    merge,
    mixed,
    placed,
    split_heads,
)
from hydrasurgeon.anatomy.parts import Attention, Block
from hydrasurgeon.anatomy.projections import Biased
from hydrasurgeon.runtime.parameters import Place, Watch

MemberRows = Float[Tensor, "member row embed"]
"""Tokens of all samples, one behind the other, for each member."""
Step = Callable[..., Any]
"""A step of a layer, applied to the hidden states of all members at once."""
Filled = Callable[[Tensor], Tensor]


class CannotGroup(Exception):
    """Members differ in a way, or are built in a way, that batched products cannot express."""


class Grouped:
    """Layers of all members; what they are made of is settled once and `holds` until parameters are
    replaced.
    """

    def __init__(self, stacks: Sequence[Sequence[Block]], tokens: Sequence[int | None]) -> None:
        beside = _SideBySide()
        # Inference tensors could not be trained afterwards.
        with torch.inference_mode(False), torch.no_grad():
            self._layers = [
                _Layer(blocks, reads, beside) for blocks, reads in zip(stacks, tokens, strict=True)
            ]
        self.holds = Watch(beside.used, beside.copied)
        self.copies = beside.copies

    def __call__(
        self,
        x: Float[Tensor, "member batch token embed"],
        bias: Tensor | None,
    ) -> Float[Tensor, "member batch token embed"]:
        """Run all layers. `bias` is the same for all members and heads."""
        batch = x.shape[1]
        if bias is not None and bias.shape[0] > 1:
            bias = bias.repeat(len(x), 1, 1, 1)
        x = x.flatten(1, 2)
        for layer in self._layers:
            x = layer(x, batch, bias)
        return x.unflatten(1, (batch, -1))


class _SideBySide:
    """One tensor for a parameter of all members."""

    def __init__(self) -> None:
        self.used: list[Place] = []
        self.copied: list[Place] = []
        self.copies: list[Tensor] = []
        self._tied: set[int] = set()

    def __call__(
        self, modules: Sequence[nn.Module], name: str, filled: Filled | None = None
    ) -> Tensor | None:
        """Return a parameter of all modules: unchanged if they share it, otherwise stacked as
        [member, …]. Parameters of unequal size are copied, and `filled` up to one size.
        """
        held = [module._parameters.get(name) for module in modules]
        if all(p is None for p in held) and all(name in module._parameters for module in modules):
            return None
        parameters = [p for p in held if isinstance(p, nn.Parameter)]
        if len(parameters) < len(modules):
            raise CannotGroup(
                f"{name} of {type(modules[0]).__name__} is not a parameter of all members"
            )
        places = [(module._parameters, name) for module in modules]
        ids = {id(p) for p in parameters}
        alike = len({(p.shape, p.dtype, p.device) for p in parameters}) == 1
        if len(ids) == 1:
            self.used += places
            return parameters[0]
        if alike and len(ids) == len(parameters) and not ids & self._tied:
            stacked = _lying(parameters)
            if stacked is None:
                stacked = torch.stack([p.detach() for p in parameters])
                for parameter, view in zip(parameters, stacked, strict=True):
                    parameter.data = view
            self.used += places
            self._tied |= ids
            return stacked
        if filled is None:
            raise CannotGroup("members share a parameter with some and not with others")
        self.copied += places
        self.copies.append(torch.stack([filled(p.detach()) for p in parameters]))
        return self.copies[-1]

    def biases(self, modules: Sequence[Biased], filled: Filled) -> Tensor:
        """Return biases that are computed from parameters; one vector if all members share them."""
        places = [module.places for module in modules]
        self.copied += [place for group in places for place in group]
        identities = {tuple(id(owner[name]) for owner, name in group) for group in places}
        shared = len(identities) == 1
        biases = [module.bias.detach() for module in (modules[:1] if shared else modules)]
        self.copies.append(biases[0] if shared else torch.stack([filled(one) for one in biases]))
        return self.copies[-1]


def _lying(parameters: Sequence[Tensor]) -> Tensor | None:
    """Return a view [member, …] of parameters that lie in one storage at even distances, else None."""
    first, *rest = parameters
    offsets = [p.storage_offset() for p in parameters]
    step = offsets[1] - offsets[0]
    even = all(later - sooner == step for sooner, later in pairwise(offsets))
    storage = first.untyped_storage().data_ptr()
    if step < first.numel() or not even or not first.is_contiguous():
        return None
    if any(p.untyped_storage().data_ptr() != storage or not p.is_contiguous() for p in rest):
        return None
    shape, strides = (len(parameters), *first.shape), (step, *first.stride())
    return first.detach().as_strided(shape, strides, offsets[0])


class _Layer:
    """The parts of one layer of all members, each a batched operation."""

    def __init__(self, blocks: Sequence[Block], tokens: int | None, beside: _SideBySide) -> None:
        self.prenorm = blocks[0].prenorm
        self.norm1, self.scale1, self.norm2, self.mlp, self.scale2 = (
            _together([getattr(block, part) for block in blocks], beside)
            for part in ("norm1", "scale1", "norm2", "mlp", "scale2")
        )
        self.attention = _Attention([block.attention for block in blocks], tokens, beside)

    def __call__(self, x: MemberRows, batch: int, bias: Tensor | None) -> MemberRows:
        attended = self.attention(attention_input(self, x), batch, bias)
        if attended.shape[1] != x.shape[1]:
            x = _first_tokens(x, batch, attended.shape[1] // batch)
        return after_attention(self, x, attended)


def _first_tokens(x: MemberRows, batch: int, tokens: int) -> MemberRows:
    return x.unflatten(1, (batch, -1))[:, :, :tokens].flatten(1, 2)


class _Attention:
    """Multi-head attention of all members; one that keeps fewer heads than another gets silent
    ones.
    """

    def __init__(self, sites: Sequence[Attention], tokens: int | None, beside: _SideBySide) -> None:
        self.site = first = sites[0]
        if first.relative is not None:
            raise CannotGroup("positions that each member projects for itself")
        self.tokens = tokens
        self.heads = max(len(site.heads) for site in sites)
        width = self.heads * first.width
        blocks = 3 if len(first.project) == 1 else 1

        def more_rows(size: int, rows: Tensor) -> Tensor:
            rest, most = rows.shape[1:], self.heads * size
            parts = rows.view(blocks, len(rows) // blocks, *rest)
            lacking = rows.new_zeros(blocks, most - parts.shape[1], *rest)
            return torch.cat((parts, lacking), dim=1).view(blocks * most, *rest)

        self.project = [
            _Product(
                [site.project[i] for site in sites],
                beside,
                partial(more_rows, size),
                partial(more_rows, size),
            )
            for i, size in enumerate(first.rows)
        ]
        if blocks == 3 and tokens is not None:
            packed = self.project[0]
            self.project = [packed.outputs(0, width), packed.outputs(width, 3 * width)]
        self.out = _Product(
            [site.out for site in sites],
            beside,
            lambda w: pad(w, (0, width - w.shape[1])),
            Tensor.clone,
        )
        self.q_norm = _together([site.q_norm for site in sites], beside, dims=5)
        self.k_norm = _together([site.k_norm for site in sites], beside, dims=5)
        self.normed = self.q_norm is not _as_it_is or self.k_norm is not _as_it_is

    def __call__(self, x: MemberRows, batch: int, bias: Tensor | None) -> MemberRows:
        members = len(x)
        asking = x if self.tokens is None else _first_tokens(x, batch, self.tokens)
        if not self.heads:
            return self.out(asking[:, :, :0])
        first, *rest = self.project
        packed = (3,) if not rest else (1, 2) if len(rest) == 1 else (1, 1, 1)
        projected = zip([first(asking), *(product(x) for product in rest)], packed, strict=True)
        q, k, v = (
            part
            for rows, parts in projected
            for part in split_heads(
                rows.view(members * batch, -1, rows.shape[-1]), parts, self.site.head_dim
            )
        )
        # Norms may differ between members: [member, batch, head, token, head_dim].
        if self.normed:
            q, k = (
                norm(part.unflatten(0, (members, batch))).flatten(0, 1)
                for norm, part in ((self.q_norm, q), (self.k_norm, k))
            )
        q, k = placed(self.site, q, k)
        sequences = x.view(members * batch, -1, x.shape[-1])
        mask = layer_bias(self.site, sequences, bias, (), self.tokens)
        heads = mixed(self.site, q, k, v, mask)
        return self.out(merge(heads).reshape(members, asking.shape[1], -1))


class _Product:
    """A linear layer of all members; members with fewer rows or columns are `filled` up."""

    def __init__(
        self,
        linears: Sequence[nn.Module],
        beside: _SideBySide,
        filled: Filled | None = None,
        filled_bias: Filled | None = None,
    ) -> None:
        weight = beside(linears, "weight", filled)
        assert weight is not None
        self.weight: Tensor = weight if weight.dim() == 2 else weight.mT
        if isinstance(linears[0], Biased):
            assert filled_bias is not None
            bias: Tensor | None = beside.biases(
                [module for module in linears if isinstance(module, Biased)], filled_bias
            )
        else:
            bias = beside(linears, "bias", filled_bias)
        self.bias = bias if bias is None or bias.dim() == 1 else bias[:, None]

    def outputs(self, start: int, stop: int) -> _Product:
        """Return the part of the layer that computes these outputs."""
        part = object.__new__(_Product)
        apart = self.weight.dim() == 3
        part.weight = self.weight[:, :, start:stop] if apart else self.weight[start:stop]
        part.bias = None if self.bias is None else self.bias[..., start:stop]
        return part

    def __call__(self, x: MemberRows) -> MemberRows:
        weight, bias = self.weight, self.bias
        if weight.dim() == 3:
            return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
        if bias is None or bias.dim() == 1:
            return linear(x, weight, bias)
        return linear(x, weight) + bias


def _together(modules: Sequence[nn.Module], beside: _SideBySide, dims: int = 3) -> Step:
    """Return a batched operation for one part of a layer, on [member, …] of `dims` dimensions. A
    module that is not a leaf is traced.
    """
    if _is_leaf(modules[0]):
        return _leaf(modules, beside, dims)
    stored: dict[fx.Node, Tensor] = {}
    steps: list[tuple[fx.Node, Step]] = []
    source = result = None
    for node in _traced(modules[0]):
        if node.op == "placeholder" and source is None:
            source = node
        elif node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            stored[node] = _aligned(beside([m.get_submodule(owner) for m in modules], name), dims)
        elif node.op == "call_module":
            step = _leaf(
                [m.get_submodule(str(node.target)) for m in modules], beside, dims, _halves(node)
            )
            steps.append((node, step))
        elif _alike_for_all(node):
            call: Any = (
                node.target if node.op == "call_function" else getattr(Tensor, str(node.target))
            )
            steps.append((node, call))
        elif node.op == "output" and isinstance(node.args[0], fx.Node) and source is not None:
            result = node.args[0]
        else:
            raise CannotGroup(f"{type(modules[0]).__name__} calls {node.target}")
    assert source is not None
    assert result is not None
    return partial(_run, steps, stored, source, result)


def _run(
    steps: Sequence[tuple[fx.Node, Step]],
    stored: Mapping[fx.Node, Tensor],
    source: fx.Node,
    result: fx.Node,
    x: Any,
) -> Any:
    """Apply the steps of a traced part to `x`."""
    values: dict[fx.Node, Any] = {**stored, source: x}
    put = partial(fx.node.map_arg, fn=values.__getitem__)
    for node, step in steps:
        values[node] = step(*put(node.args), **put(node.kwargs))
    return values[result]


def _alike_for_all(node: fx.Node) -> bool:
    """Return True if a call has the same effect on [member, …] as on one member: it works on single
    numbers, or halves rows.
    """
    if node.op == "call_method" and node.target in ELEMENTWISE_METHODS:
        return True
    if node.op == "call_method":
        along = node.kwargs.get("dim", node.args[-1] if len(node.args) > 1 else 0)
        return bool(node.target in ("chunk", "mean") and along == -1)
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return bool(node.args[1] == "dtype")
    halves = node.target is operator.getitem
    return node.target in ELEMENTWISE or (
        halves and all(source.target == "chunk" for source in node.all_input_nodes)
    )


ELEMENTWISE = {
    operator.mul,
    operator.add,
    torch.mul,
    torch.add,
    torch.rsqrt,
    torch.sigmoid,
    torch.tanh,
    nn.functional.gelu,
    nn.functional.relu,
    nn.functional.silu,
}
"""Functions of single numbers: they run on members side by side as they are."""
ELEMENTWISE_METHODS = ("float", "pow", "to", "type_as")
"""The same as methods of tensors."""
ELEMENTWISE_MODULES = (nn.Dropout, nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid)
"""The same as modules."""


def _is_leaf(module: nn.Module) -> bool:
    """Return True for modules that are not traced: linear layers, norms and torch's own modules."""
    if isinstance(module, nn.Sequential):
        return False
    return isinstance(module, nn.Linear | nn.LayerNorm) or type(module).__module__.startswith(
        "torch.nn"
    )


def _traced(module: nn.Module) -> list[fx.Node]:
    """Return the calls that a module consists of.

    `fx.symbolic_trace` would change how every module of the process is called, in threads that
    answer meanwhile too; this calls a copy.
    """
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    try:
        result = _recording(module, "", tracer)(tracer.create_proxy("placeholder", "x", (), {}))
        graph.output(result.node)
    except Exception as error:  # whatever a foreign `forward` does when asked for its operations
        raise CannotGroup(f"{type(module).__name__}: {error}") from error
    return [node for node in graph.nodes if node.op != "get_attr" or node.users]


def _recording(module: nn.Module, path: str, tracer: fx.proxy.TracerBase) -> nn.Module:
    """Return a copy without weights that records calls and reads."""

    def called(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: tracer.create_proxy("call_module", name, args, kwargs)

    copy = object.__new__(type(module))
    children: dict[str, Any] = {}
    for name, child in module._modules.items():
        if child is None:
            children[name] = None
        elif _is_leaf(child):
            children[name] = called(path + name)
        else:
            children[name] = _recording(child, f"{path}{name}.", tracer)
    copy.__dict__.update(module.__dict__, _modules=children)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            # An attribute of the object is found before nn.Module looks for a parameter.
            copy.__dict__[name] = tracer.create_proxy("get_attr", path + name, (), {})
    return copy


def _halves(node: fx.Node) -> int:
    """Return the number of chunks that a node's output is split into."""
    return next((user.args[1] for user in node.users if user.target == "chunk"), 1)  # type: ignore[return-value]


def _widened(linears: Sequence[nn.Linear], beside: _SideBySide, halves: int) -> _Product:
    """Return a linear layer of members whose MLPs have different widths. Neurons of zeros, which
    W_2 does not read, make them equal.
    """
    rows, columns = (
        max(size) for size in zip(*(layer.weight.shape for layer in linears), strict=True)
    )

    def wider(values: Tensor) -> Tensor:
        parts = values.unflatten(0, (halves, -1))
        short = rows // halves - parts.shape[1]
        if values.dim() == 1:
            return pad(parts, (0, short)).flatten()
        return pad(parts, (0, columns - values.shape[1], 0, short)).flatten(0, 1)

    return _Product(linears, beside, wider, wider)


def _leaf(modules: Sequence[nn.Module], beside: _SideBySide, dims: int, halves: int = 1) -> Step:
    first = modules[0]
    if isinstance(first, nn.Identity) or (isinstance(first, nn.Dropout) and not first.p):
        return _as_it_is
    if isinstance(first, nn.Linear):
        return _widened(modules, beside, halves)  # type: ignore[arg-type]
    if isinstance(first, nn.LayerNorm):
        return _norm(modules, beside, dims)
    if isinstance(first, ELEMENTWISE_MODULES):
        return first
    raise CannotGroup(f"{type(first).__name__} is not known")


def _as_it_is(x: Any) -> Any:
    return x


def _norm(modules: Sequence[Any], beside: _SideBySide, dims: int) -> Step:
    first = modules[0]
    weight, bias = beside(modules, "weight"), beside(modules, "bias")
    normed = partial(layer_norm, normalized_shape=first.normalized_shape, eps=first.eps)
    if all(p is None or p.dim() == 1 for p in (weight, bias)):
        return partial(normed, weight=weight, bias=bias)
    scale = _aligned(weight, dims)
    if bias is None:
        return lambda x: normed(x) * scale
    shift = _aligned(bias, dims)
    return lambda x: torch.addcmul(shift, normed(x), scale)


def _aligned(parameter: Tensor | None, dims: int) -> Tensor:
    """Reshape [member, embed] for [member, …, embed]. A parameter that members share has no such
    axis.
    """
    if parameter is None or parameter.dim() > 2:
        raise CannotGroup("a parameter that is not a vector")
    if parameter.dim() < 2:
        return parameter
    return parameter.view(len(parameter), *[1] * (dims - 2), -1)
