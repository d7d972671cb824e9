"""What a file, or --arch, may tell timm's VisionTransformer: typed, layers by names of a table.

Nothing else reaches `timm.create_model`: no path of a checkpoint, no pretrained weights, no callable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hydrasurgeon.errors import HydraError
from hydrasurgeon.families.settings import Chance, Count, Pair, Positive, Settings, Size, patches

# Names that timm knows norms by, without parameters that a file would not hold.
Norm = Literal["layernorm", "layernormfp32", "rmsnorm", "rmsnormfp32"]
# timm's names of activations without parameters.
ACTIVATIONS = (
    "elu|gelu|gelu_tanh|hard_mish|hard_sigmoid|hard_swish|hardsigmoid|hardswish|leaky_relu|mish|quick_gelu|relu|relu6|"
    "selu|sigmoid|silu|swish|tanh"
)
# One of timm's activations.
Activation = Annotated[str, Field(pattern=f"^({ACTIVATIONS})$")]
# What timm itself reads, or what only a fresh model would: left out of a file's model_args.
INERT = {"cache_dir", "checkpoint_path", "exportable", "fix_init", "no_jit", "pretrained", "pretrained_cfg"}
INERT |= {"pretrained_cfg_overlay", "scriptable", "weight_init"}


class Sizes(Settings):
    """Constructor arguments that both of timm's classes have, where they differ from the registered architecture's."""

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
        """Without None, which timm takes for the default."""
        return {key: value for key, value in super().written().items() if value is not None}


class Arguments(Sizes):
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


class Names(Settings):
    """pretrained_cfg, as far as it names classes."""

    label_names: list[str] | None = None


class Config(Names):
    """config.json as timm writes it, as far as it is read."""

    architecture: str
    num_classes: Count | None = None
    model_args: dict[str, Any] | None = None
    pretrained_cfg: dict[str, Any] | None = None


def check_whole(args: Mapping[str, Any], where: str, error: type[HydraError]) -> None:
    """Refuse arguments that do not make a ViT together; `args` are all of them, defaults included."""
    dim, heads = args["embed_dim"], args["num_heads"]
    if dim % heads:
        raise error(f"{where}: embed_dim {dim} is not a multiple of num_heads {heads}")
    if args["global_pool"] == "token" and not args["class_token"]:
        raise error(f"{where}: global_pool is token, and class_token is off")
    try:
        patches(args["img_size"], args["patch_size"])
    except ValueError as failure:
        raise error(f"{where}: {failure}") from failure
