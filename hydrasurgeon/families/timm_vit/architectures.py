"""timm's ViT architectures as a table: recognise a bare file by names and shapes, without torch or
timm.

The table is written by tools/timm_architectures.py. A file does not say how many heads it has
(2304×768 fits any divisor), so that, and everything else that shapes do not show, must come from
the table.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field

from hydrasurgeon.errors import CheckpointError, HydraError, SurgeryError
from hydrasurgeon.families.settings import Chance, Count, Pair, Positive, Settings, Size, pair
from hydrasurgeon.families.weights import (
    GATED,
    OUT,
    PACKED,
    ROWS,
    Part,
    Weight,
    linear,
    norm,
    shapes_of,
    stack,
)
from hydrasurgeon.lookup import nearest

Shapes = Mapping[str, tuple[int, ...]]

TOWER = "vision"
"""Name of the only tower."""

SUPPORTED = "Supported: timm's ViT, DeiT, DINOv3 and EVA02 models (vit_*, deit_*, eva*)."
"""The hint wherever a model is refused."""
RELATIVE_TABLE = "relative_position_bias_table"
"""Part of the names of tables of relative positions, which have a column for each head."""
RELATIVE = re.compile(r"vit_s?relpos_|beit(v2)?_|swin")
"""Architectures that have such tables."""
RELATIVE_WHY = "it has a table of relative positions in every layer, with a column for each head"
"""Why their heads cannot be cut."""
# What a file itself may say differently from the registered architecture.
FREE = ("img_size", "in_chans", "num_classes")
# init_values only starts LayerScale; whether it is there shows in the names.
SILENT = (*FREE, "init_values")


@dataclass(frozen=True)
class Architecture:
    name: str
    args: Mapping[str, Any]
    """All constructor arguments that matter, defaults included."""
    preprocess: Mapping[str, Any]
    why: str | None

    @property
    def prunable(self) -> bool:
        return self.why is None


Match = tuple[Architecture, Mapping[str, Any], tuple[str, ...]]
"""An architecture, what the file says otherwise, and other registered names with the same forward
pass.
"""


def read_table(folder: str, name: str) -> dict[str, Architecture]:
    """Read the architectures of a table, by name, each with all its arguments."""
    raw = json.loads((files(f"hydrasurgeon.families.{folder}") / name).read_text(encoding="utf-8"))
    return {
        row["name"]: Architecture(
            row["name"], {**raw["defaults"], **row["args"]}, row["preprocess"], row.get("why")
        )
        for row in raw["architectures"]
    }


@cache
def table() -> dict[str, Architecture]:
    return read_table("timm_vit", "timm_architectures.json")


# A registered name, and perhaps the tag of its weights: never a path or an address.
NAME = re.compile(r"([a-z0-9_]+)(\.[a-z0-9_]+)?")


def registered(name: str, rows: Mapping[str, Architecture]) -> Architecture | None:
    """Return the table's row for `vit_base_patch16_224.augreg_in21k`, whatever the tag."""
    match = NAME.fullmatch(name)
    return rows.get(match[1]) if match else None


def named(name: str, where: str = "--arch") -> Architecture:
    """Return the registered architecture of this name; others cannot be pruned and are refused."""
    architecture = registered(name, table())
    if architecture is not None:
        return architecture
    plain, shown = name[:60].partition(".")[0], f"{where}: timm:{name[:60]}"
    near = () if RELATIVE.match(plain) else nearest(plain, table(), most=3, cutoff=0.75)
    if near:
        raise CheckpointError(
            f"{shown} is not a known architecture", hint=f"Did you mean {', '.join(near)}?"
        )
    why = RELATIVE_WHY if RELATIVE.match(plain) else "it is not one of timm's VisionTransformers"
    raise SurgeryError(f"{shown} cannot be pruned: {why}", hint=SUPPORTED)


def weights(a: Mapping[str, Any]) -> Iterator[Weight]:
    """Yield all tensors of a VisionTransformer with these arguments."""
    dim, kind = a["embed_dim"], a["norm_layer"]
    yield from (Weight(w.name, w.shape, w.part, TOWER) for w in _embedding(a))
    yield from stack("blocks.{}", TOWER, a["depth"], _block(a))
    pooled = a["global_pool"] in ("avg", "avgmax", "max") if a["fc_norm"] is None else a["fc_norm"]
    if a["final_norm"]:
        yield from _norm("fc_norm" if pooled else "norm", kind, dim, "readout")
    if a["global_pool"] == "map":
        yield from attention_pool(dim, int(dim * a["mlp_ratio"]), bias="rms" not in kind.lower())
    if a["num_classes"]:
        yield from linear("head", a["num_classes"], dim, "classifier")
        if a["class"] == "VisionTransformerDistilled":
            yield from linear("head_dist", a["num_classes"], dim, "classifier")


def attention_pool(dim: int, hidden: int, *, bias: bool) -> Iterator[Weight]:
    """Yield timm's attention pooling; `bias` is that of its norm."""
    yield Weight("attn_pool.latent", (1, 1, dim), "readout")
    yield from linear("attn_pool.q", dim, dim, "readout")
    yield from linear("attn_pool.kv", 2 * dim, dim, "readout")
    yield from linear("attn_pool.proj", dim, dim, "readout")
    yield from norm("attn_pool.norm", dim, "readout", bias=bias)
    yield from linear("attn_pool.mlp.fc1", hidden, dim, "readout")
    yield from linear("attn_pool.mlp.fc2", dim, hidden, "readout")


def _embedding(a: Mapping[str, Any]) -> Iterator[Weight]:
    dim, distilled = a["embed_dim"], a["class"] == "VisionTransformerDistilled"
    yield from tokens(
        a,
        a["reg_tokens"],
        distilled=distilled,
        learned=a["pos_embed"] == "learn",
        bias=not a["pre_norm"],
    )
    if a["embed_norm_layer"]:
        yield from _norm("patch_embed.norm", a["embed_norm_layer"], dim, "embedding")
    if a["pre_norm"]:
        yield from _norm("norm_pre", a["norm_layer"], dim, "embedding")


def tokens(
    a: Mapping[str, Any], registers: int, *, distilled: bool, learned: bool, bias: bool
) -> Iterator[Weight]:
    """Yield the tensors that make tokens of an image.

    They are tokens of its own, positions if these are `learned`, and the patches' projection.
    """
    dim, (height, width), (ph, pw) = a["embed_dim"], pair(a["img_size"]), pair(a["patch_size"])
    prefix = 0 if a["no_embed_class"] else a["class_token"] + distilled + registers
    for name, there, shape in (
        ("cls_token", a["class_token"], (1, 1, dim)),
        ("dist_token", distilled, (1, 1, dim)),
        ("reg_token", registers, (1, registers, dim)),
        ("pos_embed", learned, (1, (height // ph) * (width // pw) + prefix, dim)),
        ("patch_embed.proj.weight", True, (dim, a["in_chans"], ph, pw)),
        ("patch_embed.proj.bias", bias, (dim,)),
    ):
        if there:
            yield Weight(name, shape, "embedding")


def _block(a: Mapping[str, Any]) -> Iterator[Weight]:
    dim, kind = a["embed_dim"], a["norm_layer"]
    yield from _norm("norm1", kind, dim, "norm")
    yield from linear("attn.qkv", 3 * dim, dim, "attention", bias=a["qkv_bias"], heads=PACKED)
    if a["qk_norm"]:
        yield from _norm("attn.q_norm", kind, dim // a["num_heads"], "attention")
        yield from _norm("attn.k_norm", kind, dim // a["num_heads"], "attention")
    yield from linear("attn.proj", dim, dim, "output", bias=a["proj_bias"], heads=OUT)
    yield from _norm("norm2", kind, dim, "norm")
    yield from _mlp(a, int(dim * a["mlp_ratio"]))
    if a["init_values"]:
        yield Weight("ls1.gamma", (dim,), "scale")
        yield Weight("ls2.gamma", (dim,), "scale")


def _mlp(a: Mapping[str, Any], hidden: int) -> Iterator[Weight]:
    dim, bias, layer = a["embed_dim"], a["proj_bias"], a["mlp_layer"]
    packed = layer.startswith("GluMlp")
    # A norm over all neurons would not be the same over some.
    rows, columns = (None, None) if a["scale_mlp_norm"] else (GATED if packed else ROWS, OUT)
    for name in ("fc1_g", "fc1_x") if layer.startswith("SwiGLU") else ("fc1",):
        yield from linear(f"mlp.{name}", hidden, dim, "mlp", bias=bias, heads=rows)
    inner = hidden // 2 if packed else hidden
    if a["scale_mlp_norm"]:
        yield from _norm("mlp.norm", a["norm_layer"], inner, "mlp")
    yield from linear("mlp.fc2", dim, inner, "mlp", bias=bias, heads=columns)


def _norm(name: str, kind: str, size: int, part: Part) -> Iterator[Weight]:
    return norm(name, size, part, bias="rms" not in kind.lower())


def fits(
    architecture: Architecture,
    shapes: Shapes,
    overrides: Mapping[str, Any],
    listed: Callable[[Mapping[str, Any]], Iterable[Weight]] = weights,
) -> str | None:
    """Return the first difference between a file and an architecture with overridden arguments.

    None if they agree.
    """
    expected = shapes_of(listed({**architecture.args, **overrides}))
    for name, shape in expected.items():
        if name not in shapes:
            return f"tensor {name} is missing"
        if shapes[name] != shape:
            return f"{name} is {_x(shapes[name])}, {architecture.name} has {_x(shape)}"
    for name in shapes:
        if name not in expected:
            return f"tensor {name} is not part of it"
    return None


def infer(shapes: Shapes, where: str = "the file") -> Match:
    """Infer the registered architecture behind bare tensors.

    Raises CheckpointError if there is none, or no unique one.
    """
    if len(shapes.get("patch_embed.proj.weight", ())) != 4:
        message = f"{where}: not a known architecture (tensors: {', '.join(list(shapes)[:3])}, …)"
        raise CheckpointError(
            message, hint=f"{SUPPORTED} Others are known by the config in their directory."
        )
    if any(RELATIVE_TABLE in name for name in shapes):
        raise SurgeryError(f"{where}: cannot be pruned: {RELATIVE_WHY}", hint=SUPPORTED)
    packed = {name: shape for name, shape in shapes.items() if name.endswith(".attn.qkv.weight")}
    cut_name = next((name for name, shape in packed.items() if shape[:1] != (3 * shape[-1],)), None)
    if cut_name is not None:
        why = f"heads were already removed ({cut_name} is {_x(shapes[cut_name])}) and the manifest is missing"
        raise CheckpointError(
            f"{where}: {why}", hint="Bring back the .heads.json, or start from the backbone."
        )
    rows = (row for row in table().values() if _quick(row, shapes))
    fit = ((row, _overrides(row, shapes)) for row in rows)
    return only(fit, shapes, where, _unknown(shapes, where))


Candidate = tuple[Architecture, Mapping[str, Any]]


def only(
    candidates: Iterable[Candidate],
    shapes: Shapes,
    where: str,
    unknown: CheckpointError,
    listed: Callable[[Mapping[str, Any]], Iterable[Weight]] = weights,
) -> Match:
    """Return the plainest of the architectures that fit and run alike.

    Raises CheckpointError if none fits, or if some run differently.
    """
    groups: dict[str, list[Candidate]] = {}
    for architecture, overrides in candidates:
        if fits(architecture, shapes, overrides, listed) is None:
            forward = {key: value for key, value in architecture.args.items() if key not in SILENT}
            same = groups.setdefault(json.dumps(forward, sort_keys=True), [])
            same.append((architecture, overrides))
    chosen = sorted((min(group, key=_plainness) for group in groups.values()), key=_plainness)
    if not chosen:
        raise unknown
    if len(chosen) > 1:
        args = [a.args for a, _ in chosen]
        differing = [
            k for k in args[0] if k not in SILENT and any(a[k] != args[0][k] for a in args)
        ]
        listing = "; ".join(f"timm:{a.name} {[a.args[k] for k in differing]}" for a, _ in chosen)
        why = f"several architectures fit, which differ in {', '.join(differing)}: {listing}"
        raise CheckpointError(
            f"{where}: {why}", hint=f"Choose one of them: --arch timm:{chosen[0][0].name}"
        )
    architecture, overrides = chosen[0]
    (group,) = groups.values()
    return architecture, overrides, tuple(sorted(a.name for a, _ in group if a is not architecture))


def _plainness(match: tuple[Architecture, Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return a sort key: ViT before others, no size override before one, few words before many."""
    architecture, overrides = match
    name = architecture.name
    return (
        not name.startswith("vit_"),
        "img_size" in overrides,
        "num_classes" in overrides and not architecture.args["num_classes"],
        name.count("_"),
        len(name),
        name,
    )


def _quick(architecture: Architecture, shapes: Shapes) -> bool:
    args = architecture.args
    weight = shapes["patch_embed.proj.weight"]
    return (
        args["embed_dim"] == weight[0]
        and pair(args["patch_size"]) == weight[2:]
        and f"blocks.{args['depth'] - 1}.norm1.weight" in shapes
        and f"blocks.{args['depth']}.norm1.weight" not in shapes
    )


def _overrides(architecture: Architecture, shapes: Shapes) -> dict[str, Any]:
    """Return image size, channels and classes, if the file differs from the registered default."""
    args, patch = architecture.args, shapes["patch_embed.proj.weight"]
    sizes = {"in_chans": patch[1], "num_classes": next(iter(shapes.get("head.weight", ())), 0)}
    overrides = {key: value for key, value in sizes.items() if value != args[key]}
    # How many tokens stand before those of the patches.
    before = args["class_token"] + args["reg_tokens"] + (args["class"] != "VisionTransformer")
    prefix = 0 if args["no_embed_class"] else before
    if len(shapes.get("pos_embed", ())) == 3:
        tokens = shapes["pos_embed"][1] - prefix
        grid = math.isqrt(max(0, tokens))
        height, width = pair(args["img_size"])
        if grid * grid == tokens != (height // patch[2]) * (width // patch[3]):
            overrides["img_size"] = grid * patch[2]
    return overrides


def _unknown(shapes: Shapes, where: str) -> CheckpointError:
    """Return the error for a ViT of unregistered sizes: its sizes, and how to say what it is."""
    dim, channels, patch, _ = shapes["patch_embed.proj.weight"]
    depth = sum(name.startswith("blocks.") and name.endswith(".norm1.weight") for name in shapes)
    hidden = shapes.get("blocks.0.mlp.fc1.bias", (0,))[0]
    sizes = f"dim {dim}, depth {depth}, patch {patch}, MLP ratio {hidden / max(1, dim):g}"
    extra = (
        f",img_size=…,patch_size={patch},in_chans={channels}"
        if (patch, channels) != (16, 3)
        else ""
    )
    hint = (
        f"Say it: --arch timm:vit_tiny_patch16_224,embed_dim={dim},depth={depth},num_heads=…{extra}"
    )
    return CheckpointError(f"{where}: no registered timm ViT has these sizes ({sizes})", hint=hint)


def _x(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


# Names that timm knows norms by, without parameters that a file would not hold.
Norm = Literal["layernorm", "layernormfp32", "rmsnorm", "rmsnormfp32"]
# timm's names of activations without parameters.
ACTIVATIONS = "elu|gelu|gelu_tanh|hard_mish|hard_sigmoid|hard_swish|hardsigmoid|hardswish|leaky_relu|mish|quick_gelu|relu|relu6|selu|sigmoid|silu|swish|tanh"
# One of timm's activations.
Activation = Annotated[str, Field(pattern=f"^({ACTIVATIONS})$")]
# What timm itself reads, or what only a fresh model would: left out of a file's model_args.
INERT = {
    "cache_dir",
    "checkpoint_path",
    "exportable",
    "fix_init",
    "no_jit",
    "pretrained",
    "pretrained_cfg",
}
INERT |= {"pretrained_cfg_overlay", "scriptable", "weight_init"}


class Sizes(Settings):
    """Constructor arguments that both of timm's classes have, where they differ from the registered
    architecture's.
    """

    img_size: Pair | None = None
    patch_size: Pair | None = None
    in_chans: Size | None = None
    global_pool: Literal["avg", "avgmax", "map", "max", "token"] | None = None
    embed_dim: Size | None = None
    depth: Size | None = None
    num_heads: Size | None = None
    mlp_ratio: Positive | None = None
    qkv_bias: bool | None = None
    init_values: Annotated[float, Field(gt=0)] | None = None
    class_token: bool | None = None
    no_embed_class: bool | None = None
    drop_rate: Chance | None = None
    pos_drop_rate: Chance | None = None
    proj_drop_rate: Chance | None = None

    def written(self) -> dict[str, Any]:
        """Return the arguments without None, which timm takes for the default."""
        return {key: value for key, value in super().written().items() if value is not None}


class ViTArguments(Sizes):
    """Those, and what VisionTransformer has besides."""

    qk_norm: bool | None = None
    scale_attn_norm: Literal[False] | None = None
    scale_mlp_norm: bool | None = None
    proj_bias: bool | None = None
    pos_embed: Literal["", "learn", "none"] | None = None
    reg_tokens: Count | None = None
    pre_norm: bool | None = None
    final_norm: bool | None = None
    fc_norm: bool | None = None
    pool_include_prefix: bool | None = None
    embed_norm_layer: Norm | None = None
    norm_layer: Norm | None = None
    act_layer: Activation | None = None
    dynamic_img_size: bool | None = None
    dynamic_img_pad: bool | None = None
    patch_drop_rate: Chance | None = None
    attn_drop_rate: Chance | None = None
    drop_path_rate: Chance | None = None


class TimmConfig(Settings):
    """config.json as timm writes it, as far as it is read."""

    label_names: list[str] | None = None
    architecture: str
    num_classes: Count | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: dict[str, Any] | None = None


def check_whole(args: Mapping[str, Any], where: str, error: type[HydraError]) -> None:
    """Refuse arguments that do not make a ViT together; `args` are all of them, defaults included."""
    dim, heads = args["embed_dim"], args["num_heads"]
    (height, width), (ph, pw) = pair(args["img_size"]), pair(args["patch_size"])
    for wrong, why in (
        (dim % heads, f"embed_dim {dim} is not a multiple of num_heads {heads}"),
        (
            args["global_pool"] == "token" and not args["class_token"],
            "global_pool is token, and class_token is off",
        ),
        (height < ph or width < pw, f"an image of {height}×{width} has 0 patches of {ph}×{pw}"),
    ):
        if wrong:
            raise error(f"{where}: {why}")
