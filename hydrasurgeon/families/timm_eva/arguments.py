"""What a file, or --arch, may tell timm's Eva: where it differs from the registered architecture."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hydrasurgeon.families.settings import (
    Chance,
    Channels,
    Classes,
    Depth,
    Heads,
    Pair,
    Ratio,
    Settings,
    Width,
)

__all__ = ["Arguments", "Asked", "Recorded"]


class Arguments(Settings):
    img_size: Pair | None = None
    patch_size: Pair | None = None
    in_chans: Channels | None = None
    global_pool: Literal["avg", "avgmax", "map", "max", "token"] | None = None
    embed_dim: Width | None = None
    depth: Depth | None = None
    num_heads: Heads | None = None
    mlp_ratio: Ratio | None = None
    qkv_bias: bool | None = None
    qkv_fused: bool | None = None
    swiglu_mlp: bool | None = None
    swiglu_align_to: Annotated[int, Field(ge=0, le=1_024)] | None = None
    scale_mlp: bool | None = None
    scale_attn_inner: Literal[False] | None = None
    init_values: Annotated[float, Field(gt=0, le=1_000)] | None = None
    class_token: bool | None = None
    num_reg_tokens: Annotated[int, Field(ge=0, le=1_024)] | None = None
    no_embed_class: bool | None = None
    use_abs_pos_emb: bool | None = None
    use_rot_pos_emb: bool | None = None
    use_fc_norm: bool | None = None
    ref_feat_shape: Pair | None = None
    rope_temperature: Annotated[int | float, Field(ge=1, le=1e9)] | None = None
    rope_rotate_half: bool | None = None
    drop_rate: Chance | None = None
    pos_drop_rate: Chance | None = None
    proj_drop_rate: Chance | None = None

    def written(self) -> dict[str, Any]:
        """Without None, which timm takes for the default."""
        return {key: value for key, value in super().written().items() if value is not None}


class Asked(Arguments):
    """The same with the number of classes, which a manifest records elsewhere."""

    num_classes: Classes | None = None


class Recorded(Settings):
    """model.config of a manifest."""

    model_args: Arguments = Arguments()
