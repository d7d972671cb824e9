"""What a file, or --arch, may tell timm's VisionTransformer: typed and bounded, layers by names of a table.

Nothing else reaches `timm.create_model`: no path of a checkpoint, no pretrained weights, no callable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hydrasurgeon.errors import HydraError
from hydrasurgeon.families.settings import (
    Chance,
    Channels,
    Classes,
    Depth,
    Heads,
    Images,
    Label,
    Pair,
    Ratio,
    Settings,
    Width,
    pair,
    parse,
    patches,
)
from hydrasurgeon.files.manifest import Model

# Names that timm knows layers by, without parameters that a file would not hold.
Norm = Literal["layernorm", "layernormfp32", "rmsnorm", "rmsnormfp32"]
Activation = Literal[
    "elu",
    "gelu",
    "gelu_tanh",
    "hard_mish",
    "hard_sigmoid",
    "hard_swish",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "mish",
    "quick_gelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "swish",
    "tanh",
]
# What timm itself reads, or what only a fresh model would: left out of a file's model_args.
INERT = {
    "cache_dir",
    "checkpoint_path",
    "exportable",
    "fix_init",
    "no_jit",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "scriptable",
    "weight_init",
}


class Sizes(Settings):
    """Constructor arguments that both of timm's classes have, where they differ from the registered architecture's."""

    img_size: Pair | None = None
    patch_size: Pair | None = None
    in_chans: Channels | None = None
    global_pool: Literal["avg", "avgmax", "map", "max", "token"] | None = None
    embed_dim: Width | None = None
    depth: Depth | None = None
    num_heads: Heads | None = None
    mlp_ratio: Ratio | None = None
    qkv_bias: bool | None = None

    def written(self) -> dict[str, Any]:
        """Without None, which timm takes for the default."""
        return {key: value for key, value in super().written().items() if value is not None}


class Arguments(Sizes):
    """Those, and what VisionTransformer has besides."""

    qk_norm: bool | None = None
    scale_attn_norm: Literal[False] | None = None
    scale_mlp_norm: bool | None = None
    proj_bias: bool | None = None
    init_values: Annotated[float, Field(gt=0, le=1_000)] | None = None
    class_token: bool | None = None
    pos_embed: Literal["", "learn", "none"] | None = None
    no_embed_class: bool | None = None
    reg_tokens: Annotated[int, Field(ge=0, le=1_024)] | None = None
    pre_norm: bool | None = None
    final_norm: bool | None = None
    fc_norm: bool | None = None
    pool_include_prefix: bool | None = None
    embed_norm_layer: Norm | None = None
    norm_layer: Norm | None = None
    act_layer: Activation | None = None
    dynamic_img_size: bool | None = None
    dynamic_img_pad: bool | None = None
    drop_rate: Chance | None = None
    pos_drop_rate: Chance | None = None
    patch_drop_rate: Chance | None = None
    proj_drop_rate: Chance | None = None
    attn_drop_rate: Chance | None = None
    drop_path_rate: Chance | None = None


class Asked(Arguments):
    """The same with the number of classes, which a manifest records elsewhere."""

    num_classes: Classes | None = None


class Recorded(Settings):
    """model.config of a manifest."""

    model_args: Arguments = Arguments()


class Names(Settings):
    """pretrained_cfg, as far as it names classes."""

    label_names: list[Label] | None = None


class Config(Names):
    """config.json as timm writes it, as far as it is read."""

    architecture: Annotated[str, Field(max_length=200)]
    num_classes: Classes | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: dict[str, Any] | None = None


def stock_arguments(config: Config, where: str, record: type[Settings] = Asked) -> dict[str, Any]:
    """model_args of a config.json, and the number of classes."""
    said = {key: value for key, value in (config.model_args or {}).items() if key not in INERT}
    if config.num_classes is not None:
        said["num_classes"] = config.num_classes
    return parse(record, said, f"{where}: model_args").written()


def recorded(model: Model, where: str, error: type[HydraError], record: type[Any] = Recorded) -> dict[str, Any]:
    """The arguments that a manifest records."""
    args: dict[str, Any] = parse(record, model.config, f"{where}: model.config", error=error).model_args.written()
    return args


def check_whole(args: Mapping[str, Any], where: str, error: type[HydraError]) -> None:
    """Refuse arguments that do not make a ViT together; `args` are all of them, defaults included."""
    dim, heads = args["embed_dim"], args["num_heads"]
    if dim % heads:
        raise error(f"{where}: embed_dim {dim} is not a multiple of num_heads {heads}")
    if args["global_pool"] == "token" and not args["class_token"]:
        raise error(f"{where}: global_pool is token, and class_token is off")
    try:
        patches(_size(args["img_size"]), _size(args["patch_size"]))
    except ValueError as failure:
        raise error(f"{where}: {failure}") from failure


def check_images(args: Mapping[str, Any], images: Images, where: str, error: type[HydraError]) -> None:
    """Refuse images of another size or with other channels than the model reads."""
    size = images.input_size[1:] if args.get("dynamic_img_size") else pair(_size(args["img_size"]))
    reads = (args["in_chans"], *size)
    if images.input_size != reads:
        made, read = ("×".join(map(str, each)) for each in (images.input_size, reads))
        raise error(f"{where}: makes images of {made}, the model reads {read} (model_args: img_size, in_chans)")


def _size(size: int | list[int] | tuple[int, int]) -> int | tuple[int, int]:
    return size if isinstance(size, int) else (size[0], size[1])
