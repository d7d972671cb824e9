"""What a file, or --arch, may tell timm's Eva: where it differs from the registered architecture."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hydrasurgeon.families.settings import Chance, Classes, Pair, Settings
from hydrasurgeon.families.timm_vit.arguments import Sizes


class Arguments(Sizes):
    """Those that VisionTransformer has too, and what Eva has besides."""

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


class Asked(Arguments):
    """The same with the number of classes, which a manifest records elsewhere."""

    num_classes: Classes | None = None


class Recorded(Settings):
    """model.config of a manifest."""

    model_args: Arguments = Arguments()
