"""transformers' decoders with any number of grouped heads in each layer, taken apart.

A classifier reads the last token that is no padding, wherever the padding lies; tokens behind it
are seen by none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.layers import run
from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Block, Stack
from hydrasurgeon.families.decoder.family import (
    KINDS,
    LOCAL,
    NORMED,
    SANDWICHED,
)
from hydrasurgeon.families.hf_encoder.modules import (
    Encoder,
    Features,
    attention_of,
    encoder_of,
    fields_of,
    library_config,
    pooled_logits,
    reads_pooled,
    stock_model,
)
from hydrasurgeon.families.modernbert.modules import counted, rotation, window
from hydrasurgeon.files.manifest import Model

if TYPE_CHECKING:
    from hydrasurgeon.families.hf_encoder.family import HFVariant
    from hydrasurgeon.heads import Kept


class Decoder(Encoder):
    """Runs part by part: only the token that is read is classified, and Gemma's padding is never
    NaN in float64.
    """

    def forward(self, inputs: Any) -> Tensor:
        return run(anatomy(self), inputs)


def build(family: HFVariant, model: Model, kept: Kept, *, fresh: bool) -> Encoder:
    config = family.config(model)
    stock = library_config(model, config)
    stock.attention_dropout = 0.0  # blocks run without: nothing may promise it
    inner = stock_model(model, KINDS[config.model_type], stock, fresh=fresh)
    base = inner.model
    base.rotary_emb = DecoderAngles(type(base.rotary_emb)(stock))
    if hasattr(base.embed_tokens, "embed_scale"):  # a buffer that no file brings
        base.embed_tokens.register_buffer(
            "embed_scale", torch.tensor(config.hidden_size**0.5), persistent=False
        )
    if not reads_pooled(inner, model, config, fresh=fresh) and not model.num_classes:
        inner.score = Features()
    return encoder_of(inner, model, config, kept, module_type=Decoder)


class DecoderAngles(nn.Module):
    """The library's angles, from frequencies that stay as they are whatever the weights are rounded
    to.
    """

    def __init__(self, stock: Any) -> None:
        super().__init__()
        ending = "inv_freq"
        names = [
            name
            for name, _ in stock.named_buffers()
            if name.endswith(ending) and "original" not in name
        ]
        self.speeds = {
            name.removesuffix(ending).strip("_") or None: getattr(stock, name) for name in names
        }
        """Rotation speeds by type of layer, or for all layers under None.

        No buffers, because casts of the model would round them.
        """
        self.scales = {
            kind: float(
                getattr(stock, f"{kind}_attention_scaling" if kind else "attention_scaling")
            )
            for kind in self.speeds
        }

    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin for every dimension, in the dtype of `x`."""
        kind = layer_type if layer_type in self.speeds else None
        angles = position_ids[..., None].float() * self.speeds[kind].to(x.device)
        angles_twice = torch.cat((angles, angles), dim=-1)
        return (angles_twice.cos() * self.scales[kind]).to(x.dtype), (
            angles_twice.sin() * self.scales[kind]
        ).to(x.dtype)


def anatomy(decoder: Decoder) -> Anatomy:
    inner: Any = decoder.model
    base, config = inner.model, inner.config

    def embed(inputs: Any) -> Stack:
        fields = fields_of(inputs)
        ids = fields["input_ids"]
        hidden = base.embed_tokens(ids)
        if config.model_type == "gemma2" and not hasattr(
            base.embed_tokens, "embed_scale"
        ):  # older versions
            hidden = hidden * torch.tensor(config.hidden_size**0.5, dtype=hidden.dtype)
        return Stack(
            hidden, _causal(ids, fields.get("attention_mask"), hidden, config.pad_token_id)
        )

    def readout(stack: Stack) -> Tensor:
        if decoder.pooling is not None:
            normed = replace(stack, hidden=base.norm(stack.hidden))
            return pooled_logits(inner, decoder.pooling, normed)
        real = real_tokens(stack)
        last = (counted(stack.hidden[0, :, 0]) * real).argmax(dim=1)
        place = last[:, None, None].expand(-1, 1, stack.hidden.shape[-1])
        return inner.score(base.norm(stack.hidden.gather(1, place)[:, 0]))

    return Anatomy(
        embed=embed,
        embed_parts=(base.embed_tokens,),
        blocks=tuple(
            _block(layer, at, decoder.kept[at], base, config)
            for at, layer in enumerate(base.layers)
        ),
        readout=readout,
        readout_parts=(base.norm, inner.score or inner.classifier),
    )


def _causal(ids: Tensor, mask: Tensor | None, hidden: Tensor, padding: int) -> Tensor:
    """Return the mask of later tokens and padding.

    With the padding it hides the tokens behind the last one that is read.
    """
    places = counted(hidden[0, :, 0])
    last = (places * (ids != padding)).amax(dim=1, keepdim=True)
    real = places <= last
    if mask is not None:
        real = real & (mask != 0)
    seen = (places[:, None] >= places) & real[:, None, None]
    return (~seen).to(hidden.dtype) * torch.finfo(hidden.dtype).min


def _block(layer: Any, at: int, row: tuple[int, ...], base: Any, config: Any) -> Block:
    attn, none = layer.self_attn, nn.Identity()
    kind = getattr(attn, "layer_type", None)
    reach = (
        getattr(attn, "sliding_window", None)
        if config.model_type != "mistral"
        else config.sliding_window
    )
    normed = {"q_norm": attn.q_norm, "k_norm": attn.k_norm} if config.model_type in NORMED else {}
    site = attention_of(
        layer,
        KINDS[config.model_type].tower,
        at,
        row,
        scale=attn.scaling,
        rotate=rotation(base, kind, "llama"),
        bias=None
        if reach is None or kind not in (None, LOCAL)
        else window(lambda apart: apart >= reach),
        queries=attn.num_key_value_groups,
        # Gemma 3 has the setting and does not use it.
        softcap=attn.attn_logit_softcapping if config.model_type == "gemma2" else None,
        **normed,
    )
    if config.model_type in SANDWICHED:
        norms = layer.post_attention_layernorm, layer.pre_feedforward_layernorm, layer.mlp
        return Block(
            layer.input_layernorm, site, *norms, layer.post_feedforward_layernorm, sandwiched=True
        )
    return Block(layer.input_layernorm, site, none, layer.post_attention_layernorm, layer.mlp, none)
