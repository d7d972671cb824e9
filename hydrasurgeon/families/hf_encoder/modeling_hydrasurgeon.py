"""A transformers classifier whose layers keep different attention heads, or a Hydra of several.

Written by hydrasurgeon; needs torch, transformers and safetensors only. config.json says under
`hydrasurgeon` which heads every layer keeps.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

ARCH = "BertForSequenceClassification"
"""The library's class that is pruned: another one's name stands here in directories of other
models.
"""
MODELLING = "modeling_hydrasurgeon"
"""Name of this file in a directory."""
Base: Any = getattr(transformers, ARCH)
WEIGHTS = "model.safetensors"
"""The library's name of the weights in a directory."""
STOCK = "load with trust_remote_code=True"
"""Stands in config.json where the library looks for the name of a weight file, so that its own
classes raise: they would fill what they do not find at random.
"""


class Config(Base.config_class):  # type: ignore[misc]
    """The type that config.json names, which the library does not know; what is made of it is the
    library's config.
    """

    model_type = f"hydrasurgeon_{Base.config_class.model_type}"

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **options: Any) -> Any:
        stock = Base.config_class
        return stock.from_dict({**config_dict, "model_type": stock.model_type}, **options)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "transformers_weights": STOCK}


class SavesCode:
    """A model that is saved with this file beside it, and named in its config."""

    config: Any
    kind: str
    main_input_name: str

    @classmethod
    def is_remote_code(cls) -> bool:
        # Else the library would copy it anew, and name a class of the model's own.
        return False

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        """Save a directory that the auto classes load again, and Trainer resumes from."""
        os.makedirs(folder, exist_ok=True)
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
        with open(os.path.join(folder, f"{MODELLING}.py"), "w", encoding="utf-8") as copied:
            copied.write(text)
        task = "Image" if self.main_input_name == "pixel_values" else "Sequence"
        if "ForTokenClassification" in ARCH:
            task = "Token"
        auto = f"AutoModelFor{task}Classification"
        stock = self.config
        self.config = copy.copy(stock)
        self.config.__class__ = Config
        self.config.auto_map = {
            "AutoConfig": f"{MODELLING}.Config",
            auto: f"{MODELLING}.{self.kind}",
        }
        try:
            # Names as the live model has them: Trainer loads them back into it.
            super().save_pretrained(folder, **{**options, "save_original_format": False})  # type: ignore[misc]
        finally:
            self.config = stock


class PrunedModel(SavesCode, Base):  # type: ignore[misc]
    """The library's classifier with the heads that config.json lists."""

    kind = "PrunedModel"

    def __init__(self, config: Any) -> None:
        (rows,) = listed(config)
        neurons = neurons_of(config.hydrasurgeon)
        super().__init__(config)
        if "pooling" in config.hydrasurgeon:
            classify_pooled(self, nn.Linear(config.hidden_size, config.num_labels))
        for number, (layer, row) in enumerate(zip(encoder_layers(self), rows, strict=True)):
            site = attention_site(layer)
            shrink(site, row)
            if neurons:
                shrink_mlp(layer, site, len(neurons[number]))

    def forward(self, *inputs: Any, labels: Tensor | None = None, **named: Any) -> Any:
        if "pooling" not in self.config.hydrasurgeon:
            return super().forward(*inputs, labels=labels, **named)
        named.pop("return_dict", None)
        names = [*inspect.signature(Base.forward).parameters][1:]
        named |= dict(zip(names, inputs, strict=False))
        logits = classified(self, self.config.hydrasurgeon["pooling"], named)
        loss = None
        if labels is not None:
            scores = logits if says_yes(self.config) else logits.log_softmax(dim=-1)
            loss = loss_of(self.config, scores, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    @classmethod
    def from_pretrained(cls, path: Any, *arguments: Any, config: Any = None, **options: Any) -> Any:
        config = copy.deepcopy(config or Config.from_pretrained(path, **hub_options(options)))
        vars(config).pop("transformers_weights", None)
        return super().from_pretrained(path, *arguments, config=config, **options)


class HydraModel(SavesCode, transformers.PreTrainedModel):
    """Several pruned classifiers of one backbone that share equal weights; answers with their mean
    probability.
    """

    kind = "HydraModel"
    config_class = Base.config_class
    main_input_name = Base.main_input_name
    accepts_loss_kwargs = False  # its loss is a mean over the batch, which Trainer then scales
    base_model_prefix = Base.base_model_prefix

    def __init__(self, config: Any, members: Sequence[nn.Module]) -> None:
        super().__init__(config)
        self.members = nn.ModuleList(members)
        # What all members share is saved once, as the first one's.
        tied = {
            f"members.{number}.{name}": f"members.0.{name}"
            for name in shared_by_all(members)
            for number in range(1, len(members))
        }
        self._tied_weights_keys = self.all_tied_weights_keys = tied
        self._keys_to_ignore_on_save = list(tied)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, path: Any, *_: Any, config: Any = None, **options: Any
    ) -> HydraModel:
        hub = hub_options(options)
        load_options = {
            key: options[key]
            for key in ("attn_implementation", "device_map", "dtype", "torch_dtype")
            if options.get(key) is not None
        }
        config = config or Config.from_pretrained(path, **hub)
        stored = stored_tensors(path, hub)
        kepts, recorded = listed(config), config.hydrasurgeon
        unions = [(kepts, recorded["head_tensors"], recorded["head_dim"])]
        neurons = recorded.get("member_neurons", [{}] * len(kepts))
        if "neuron_tensors" in recorded:
            unions.append(
                ([neurons_of(record) for record in neurons], recorded["neuron_tensors"], 1)
            )
        members = []
        for number, kept in enumerate(kepts):
            single = copy.deepcopy(config)
            shared = {key: recorded[key] for key in ("pooling",) if key in recorded}
            single.hydrasurgeon = {"kept": kept, **neurons[number], **shared}
            weights = member_weights(stored, number, unions)
            member, loaded = PrunedModel.from_pretrained(
                None, config=single, state_dict=weights, output_loading_info=True, **load_options
            )
            if loaded["missing_keys"]:
                raise ValueError(
                    f"{path}: member {number} lacks {sorted(loaded['missing_keys'])[0]}"
                )
            members.append(member)
        share_equal(members)
        model = cls(config, members)
        model.name_or_path = str(path)
        model.eval()  # type: ignore[no-untyped-call]
        return model

    def tie_weights(self, *_: Any, **__: Any) -> None:
        """Do nothing: members share parameters, which loading fills in place."""

    def save_pretrained(  # type: ignore[override]
        self, folder: Any, state_dict: Mapping[str, Tensor] | None = None, **options: Any
    ) -> None:
        """Save a directory that `from_pretrained` reads, and Trainer resumes from.

        Every member's own tensors lie under its number.
        """
        tied = self._tied_weights_keys or ()
        seen: set[int] = set()
        written = {}
        for name, tensor in (state_dict or self.state_dict()).items():
            if name not in tied:
                # Equal in some members only: each gets a copy.
                written[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
                seen.add(tensor.data_ptr())
        super().save_pretrained(folder, state_dict=written, **options)

    def member_logits(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the members' logits, [batch, member, class]."""
        return torch.stack([member(*inputs, **named).logits for member in self.members], dim=1)

    def forward(self, *inputs: Any, labels: Tensor | None = None, **named: Any) -> Any:
        named.pop("return_dict", None)
        member_logits = self.member_logits(*inputs, **named).float()
        if self.config.problem_type == "regression":
            logits = member_logits.mean(dim=1)
        elif says_yes(self.config):
            logits = log_odds(member_logits)
        else:
            probs = member_logits.softmax(dim=-1).mean(dim=1)
            logits = probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
        loss = None if labels is None else loss_of(self.config, logits, labels)
        output = (
            ImageClassifierOutput
            if self.main_input_name == "pixel_values"
            else SequenceClassifierOutput
        )
        return output(loss=loss, logits=logits)


# Trainer hands on the columns that the signature names.
for model_class in (PrunedModel, HydraModel):
    model_class.forward.__signature__ = inspect.signature(Base.forward)  # type: ignore[attr-defined, union-attr]
# Pipelines know classifiers by the name of their class.
PrunedModel.__name__ = HydraModel.__name__ = ARCH


def classify_pooled(model: Any, classifier: nn.Module) -> None:
    """Replace all that the library's classifier does to tokens by one layer."""
    base = getattr(model, encoder_name(model))
    for owner, name in (
        (base, "pooler"),
        (model, "pre_classifier"),
        (model, "head"),
        (model, "score"),
    ):
        if hasattr(owner, name):
            setattr(owner, name, None)
    model.classifier = classifier


def classified(model: Any, pooling: Mapping[str, Any], inputs: Mapping[str, Any]) -> Tensor:
    """Return the classifier's logits for pooled tokens."""
    hidden = getattr(model, encoder_name(model))(**inputs).last_hidden_state
    mask = inputs.get("attention_mask")
    real = torch.ones_like(hidden[..., 0]) if mask is None else mask
    logits: Tensor = model.classifier(pool(hidden, real, pooling["mode"], pooling["normalize"]))
    return logits


def pool(hidden: Tensor, real: Tensor, mode: str, normalize: bool) -> Tensor:
    """Pool tokens [batch, token, dim] to one vector each, by sentence-transformers' definitions."""
    if mode == "mean":
        weight = real[..., None].to(hidden.dtype)
        vector = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
    elif mode == "last":
        seen = real.to(hidden.dtype)
        # The real token behind which there is none.
        last = seen * (seen.flip(1).cumsum(dim=1).flip(1) == 1)
        vector = (hidden * last[..., None]).sum(dim=1)
    else:
        vector = hidden[:, 0]
    return nn.functional.normalize(vector, dim=-1) if normalize else vector


def says_yes(config: Any) -> bool:
    """Return True if each logit answers yes or no by itself."""
    return config.num_labels == 1 or config.problem_type == "multi_label_classification"


def log_odds(member_logits: Tensor) -> Tensor:
    """Return the logits whose sigmoid is the mean of the sigmoids of [batch, member, label]."""
    log_p = nn.functional.logsigmoid
    return log_p(member_logits).logsumexp(dim=1) - log_p(-member_logits).logsumexp(dim=1)


def loss_of(config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of log-probabilities, of log-odds, or of numbers."""
    if config.problem_type == "regression":
        return nn.functional.mse_loss(logits[:, 0], labels.to(logits.dtype).reshape(-1))
    if says_yes(config):
        target = labels.to(logits.dtype).reshape(logits.shape)
        return nn.functional.binary_cross_entropy_with_logits(logits, target)
    # Of tokens [batch, token, class] each is a row of its own; −100 counts nothing.
    return nn.functional.nll_loss(logits.flatten(end_dim=-2), labels.flatten())


def listed(config: Any) -> list[list[list[int]]]:
    """Return the heads that every layer of every member keeps.

    A wrong list is refused, because it would run other heads than it says.
    """
    recorded = getattr(config, "hydrasurgeon", None) or {}
    members: Any = recorded["members"] if "members" in recorded else [recorded.get("kept")]
    sizes = getattr(config, "vision_config", config)
    layers, heads = (
        sizes.num_hidden_layers,
        getattr(sizes, "num_key_value_heads", None) or sizes.num_attention_heads,
    )
    for member in members:
        if (
            not isinstance(member, list)
            or len(member) != layers
            or not all(isinstance(row, list) for row in member)
        ):
            raise ValueError(
                f"config.json: hydrasurgeon: does not list heads for each of {layers} layers"
            )
        for row in member:
            if any(type(head) is not int for head in row) or row != sorted(
                set(row) & set(range(heads))
            ):
                raise ValueError(
                    f"config.json: hydrasurgeon: {row} is no sorted list of heads below {heads}"
                )
    kept: list[list[list[int]]] = members
    return kept


def neurons_of(recorded: Mapping[str, Any]) -> list[list[int]]:
    """Return the neurons that every layer keeps; empty if all stay."""
    neurons = recorded.get("neurons") or {"bits": [], "width": 0}
    rows = [int(bits, 16) for bits in neurons["bits"]]
    if any(not 0 < row < 1 << neurons["width"] for row in rows):
        raise ValueError(f"config.json: hydrasurgeon: bits of neurons beyond {neurons['width']}")
    return [[at for at in range(neurons["width"]) if row >> at & 1] for row in rows]


def member_weights(
    stored: Mapping[str, Tensor],
    number: int,
    unions: Sequence[tuple[Sequence[Sequence[Sequence[int]]], Mapping[str, Sequence[int]], int]],
) -> dict[str, Tensor]:
    """Return a member's tensors.

    `unions` hold the members' kept heads or neurons, the names of their tensors (`{}` stands for
    the layer) with axis, blocks and queries, and the size of one of them.
    """
    cuts = {}
    for kepts, cut, size in unions:
        for layer, row in enumerate(kepts[number]):
            union = sorted(set().union(*(kept[layer] for kept in kepts)))
            where = {one: at for at, one in enumerate(union)}
            if len(row) < len(union):
                for name, place in cut.items():
                    cuts[name.replace("{}", str(layer))] = (
                        place,
                        [where[one] for one in row],
                        len(union),
                        size,
                    )
    # What all members share lies where `fuse` puts it, under its own name, or as the first
    # member's.
    prefix, first = f"members.{number}.", "members.0."
    places = {name.removeprefix(first): name for name in stored if name.startswith(first)}
    places |= {name: name for name in stored if not name.startswith("members.")}
    places |= {name.removeprefix(prefix): name for name in stored if name.startswith(prefix)}
    weights = {name: stored[place] for name, place in places.items()}
    for name, ((axis, blocks, queries), at, present, size) in cuts.items():
        if places.get(name) == name:
            tensor = weights[name]
            if tensor.shape[axis] != blocks * present * queries * size:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, not {present} heads of {size}"
                )
            heads = tensor.unflatten(axis, (blocks, present, queries * size))
            heads = heads.index_select(axis + 1, torch.tensor(at, dtype=torch.long))
            weights[name] = heads.flatten(axis, axis + 2)
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def shared_by_all(members: Sequence[nn.Module]) -> list[str]:
    """List the names of parameters that are one and the same in all members."""
    parameters = [dict(member.named_parameters(remove_duplicate=False)) for member in members]
    return [
        name
        for name, p in parameters[0].items()
        if all(other.get(name) is p for other in parameters[1:])
    ]


def hub_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `from_pretrained` that say where files come from."""
    names = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
    return {key: options[key] for key in names if key in options}


def stored_tensors(path: Any, hub: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Load the tensors of a directory: those of one file, or of the files that an index names."""
    file = cached_file(path, WEIGHTS, _raise_exceptions_for_missing_entries=False, **hub)
    places: list[Any] = [file]
    if file is None:
        index = str(cached_file(path, f"{WEIGHTS}.index.json", **hub))
        places, _ = get_checkpoint_shard_files(path, index, **hub)  # type: ignore[no-untyped-call]
    return {name: tensor for place in places for name, tensor in load_file(str(place)).items()}


def share_equal(members: Sequence[nn.Module]) -> None:
    """Replace parameters that are equal in several members by a single one."""
    parameters: dict[str, list[nn.Parameter]] = {}
    for member in members:
        for name, parameter in list(member.named_parameters()):
            distinct = parameters.setdefault(name, [])
            twin = next(
                (p for p in distinct if p.shape == parameter.shape and torch.equal(p, parameter)),
                None,
            )
            if twin is None:
                distinct.append(parameter)
            else:
                owner, _, last = name.rpartition(".")
                setattr(member.get_submodule(owner), last, twin)


def encoder_name(model: Any) -> str:
    """Return the name of a classifier's encoder; CLIP's and SigLIP's is not their prefix."""
    prefix: str = model.base_model_prefix
    return prefix if hasattr(model, prefix) else "vision_model"


def encoder_layers(model: Any) -> Sequence[Any]:
    base = getattr(model, encoder_name(model))
    stack = base.transformer if hasattr(base, "transformer") else getattr(base, "encoder", base)
    layers: Sequence[Any] = stack.layer if hasattr(stack, "layer") else stack.layers
    return layers


# The attention in a layer, its projections, and its output projection, as each type of model and
# version of transformers has them: the first that a layer has.
LAYOUTS = (
    (
        "attention.self",
        ("query", "key", "value"),
        "attention.output.dense",
    ),  # BERT, RoBERTa, ELECTRA
    # ViT, DeiT and DINOv2 before transformers 5.9 and 5.18
    ("attention.attention", ("query", "key", "value"), "attention.output.dense"),
    ("attention.attn", ("q", "k", "v"), "attention.attn.o"),  # MPNet
    ("attention", ("q_lin", "k_lin", "v_lin"), "attention.out_lin"),  # DistilBERT
    ("attention", ("q_proj", "k_proj", "v_proj"), "attention.o_proj"),
    ("attn", ("Wqkv",), "attn.Wo"),  # ModernBERT
    (
        "attention.self",
        ("query_proj", "key_proj", "value_proj"),
        "attention.output.dense",
    ),  # DeBERTa v2 and v3
    ("self_attn", ("q_proj", "k_proj", "v_proj"), "self_attn.out_proj"),  # CLIP, SigLIP
    ("self_attn", ("q_proj", "k_proj", "v_proj"), "self_attn.o_proj"),  # decoders
)


class AttentionSite:
    """One layer's attention: the module that counts heads, its projections (or one that packs
    them), and W_O.
    """

    def __init__(self, layer: Any, place: str, names: Sequence[str], out: str) -> None:
        self.module = layer.get_submodule(place)
        owner, _, self.out_name = out.rpartition(".")
        self.owner, self.names = layer.get_submodule(owner), tuple(names)
        self.head_dim = int(
            getattr(self.module, "attention_head_size", None) or self.module.head_dim
        )
        # How many queries share a key and a value, and are one head with them.
        self.queries = int(getattr(self.module, "num_key_value_groups", 1))

    @property
    def project(self) -> tuple[nn.Linear, ...]:
        return tuple(getattr(self.module, name) for name in self.names)

    @property
    def projections(self) -> tuple[nn.Linear, ...]:
        """With those of DeBERTa's distances, where these are projected apart from words."""
        more = (getattr(self.module, name, None) for name in ("pos_key_proj", "pos_query_proj"))
        return (*self.project, *(linear for linear in more if linear is not None))

    @property
    def out(self) -> nn.Linear:
        linear: nn.Linear = getattr(self.owner, self.out_name)
        return linear


def attention_site(layer: Any) -> AttentionSite:
    inside = {name for name, _ in layer.named_modules()}
    return next(
        AttentionSite(layer, place, names, out)
        for place, names, out in LAYOUTS
        if out in inside and all(f"{place}.{name}" in inside for name in names)
    )


def shrink(site: AttentionSite, row: Sequence[int]) -> None:
    """Make room for these heads; the new parameters get their values when weights are loaded."""
    width, module = len(row) * site.head_dim, site.module
    columns = width * site.queries
    for name in ("num_attention_heads", "n_heads", "num_heads"):
        if hasattr(module, name):
            setattr(module, name, len(row))
    if hasattr(module, "all_head_size"):
        module.all_head_size = width
    if site.out_name == "o":
        module.register_forward_pre_hook(own_columns(row))
    if site.out.in_features == columns:
        return
    sizes = (
        (width * 3,) if len(site.names) == 1 else (columns, *(width,) * (len(site.projections) - 1))
    )
    for linear, rows in zip(site.projections, sizes, strict=True):
        linear.out_features = rows
        linear.weight = room(linear.weight, (rows, linear.in_features))
        if linear.bias is not None:
            linear.bias = room(linear.bias, (rows,))
    site.out.in_features = columns
    site.out.weight = room(site.out.weight, (site.out.out_features, columns))
    if not row and site.out_name in ("dense", "o", "o_proj", "Wo", "out_proj"):
        module.forward = MethodType(without_heads, module)


def shrink_mlp(layer: nn.Module, site: AttentionSite, count: int) -> None:
    """Make room for so many neurons.

    All linear layers but the attention's are the MLP's, with W_2 as the last.
    """
    attention = {id(linear) for linear in (*site.projections, site.out)}
    *first, last = (
        m for m in layer.modules() if isinstance(m, nn.Linear) and id(m) not in attention
    )
    for linear in first:
        rows = linear.out_features // last.in_features * count
        linear.out_features, linear.weight = rows, room(linear.weight, (rows, linear.in_features))
        if linear.bias is not None:
            linear.bias = room(linear.bias, (rows,))
    last.in_features, last.weight = count, room(last.weight, (last.out_features, count))


def without_heads(module: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Return the output of an attention without heads.

    Older versions count tokens by the heads' outputs, which are then empty.
    """
    nothing = hidden_states.new_zeros(*hidden_states.shape[:-1], 0)
    out = next(
        (
            getattr(module, name)
            for name in ("o", "o_proj", "Wo", "out_proj")
            if hasattr(module, name)
        ),
        None,
    )
    return (nothing if out is None else out(nothing)), None


def room(like: Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))


def own_columns(row: Sequence[int]) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    """Return a hook that selects the columns of the kept heads.

    MPNet's table of relative positions has a column for every head.
    """

    def select(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, mask, bias = args
        return hidden, mask, bias[:, list(row)]

    return select
