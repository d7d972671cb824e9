"""A classifier that carries a decision state: beside logits it answers how sure it is, and whether
it knows such inputs.

Written by hydrasurgeon; needs torch, transformers and safetensors only. config.json holds the
state's numbers under `hydrasurgeon.decision`, decision.safetensors its tensors. `logits` are ln p
of the calibrated probabilities, so that pipelines, which take their softmax, give these; in
training the model is the plain one.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput
from transformers.utils.hub import cached_file

from hydrasurgeon.statistics.probabilities import yes_or_no
from hydrasurgeon.statistics.scores.fitted import stored_scores
from hydrasurgeon.statistics.scores.on_logits import logit_scores
from hydrasurgeon.statistics.temperature import calibrated, uncertainties

# transformers brings what stands here along; where it lies then has no other name.
from .modeling_hydrasurgeon import ARCH, HydraModel, PrunedModel, encoder_name, hub_options, loss_of

STATE = "decision.safetensors"
"""The file of the state's tensors."""
PREFIX = "hydrasurgeon.decision."
"""How their names begin."""
TINY_FLOAT = torch.finfo(torch.float32).tiny
"""Probabilities below it have no logarithm in float32."""

FITTED, LOGITS = stored_scores(), logit_scores()
"""Score → what it stores of each member, and what it makes of that, features and logits; or its
terms of a member's logits, and what it makes of their mean.
"""

NOTES: ContextVar[dict[Any, Tensor] | None] = ContextVar("notes", default=None)
"""What the pass of this thread notes: other threads that share the model have notes of their own."""


@dataclass
class DecidedOutput(ModelOutput):
    """The library's output of a classifier, and what the decision state makes of it."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    """ln of the calibrated probabilities; of one logit their log-odds."""
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    probabilities: Tensor | None = None
    uncertainty: Tensor | None = None
    """Entropy in nats."""
    ood_score: Tensor | None = None
    """Higher is more unfamiliar."""
    unfamiliar: Tensor | None = None
    """Whether the score is above its threshold."""


def note_features(members: Sequence[Any], classes: int) -> list[list[nn.Linear]]:
    """From now on a pass notes what its classifiers are given, if its caller asks: those of each
    member.
    """
    parts = [readers(member, classes) for member in members]
    for part in (part for own in parts for part in own):
        part.register_forward_pre_hook(_note_input)
    for member in members:
        base = getattr(member, encoder_name(member))
        base.register_forward_pre_hook(_note_last_token, with_kwargs=True)
    return parts


def _note_last_token(base: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Where decoders read: they classify every token, and answer by the last that is no padding."""
    notes = NOTES.get()
    ids = named.get("input_ids", arguments[0] if arguments else None)
    if notes is not None and ids is not None and ids.dim() == 2:
        real = (ids != base.config.pad_token_id).int()
        notes["last"] = (torch.arange(ids.shape[1], device=ids.device) * real).argmax(dim=1)


def _note_input(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    notes = NOTES.get()
    if notes is not None:
        features = inputs[0].detach()
        if features.dim() == 3:
            features = features[torch.arange(len(features)), notes["last"]]
        notes[part] = features


def noted(parts: Sequence[Sequence[nn.Linear]], notes: Mapping[Any, Tensor]) -> Tensor:
    """[batch, member, width]; a distilled model's two classifiers side by side."""
    rows = [torch.cat([notes[part] for part in own], dim=-1) for own in parts]
    return torch.stack(rows, dim=1)


def readers(member: Any, classes: int) -> list[nn.Linear]:
    """The linear layers that answer: those side by side behind the encoder, or the last of several."""
    encoder = f"{encoder_name(member)}."
    linear = {
        name: part
        for name, part in member.named_modules()
        if isinstance(part, nn.Linear)
        and part.out_features == classes
        and not name.startswith(encoder)
    }
    return [part for name, part in linear.items() if "." not in name] or list(linear.values())[-1:]


class Decides:
    """Logits and features → calibrated probabilities, their entropy, and an OOD score; in float64."""

    def __init__(
        self, config: Any, members: int, tensors: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        try:
            record = config.hydrasurgeon["decision"]
            ood, joint = record["ood"], record.get("joint")
            self.temperature, self.threshold = float(record["temperature"]), float(ood["threshold"])
            self.joint = (
                None
                if joint is None
                else SimpleNamespace(
                    aleatoric=float(joint["aleatoric"]), epistemic=float(joint["epistemic"])
                )
            )
            self.bias = None if record.get("bias") is None else float(record["bias"])
            self.kind = ood["score"]
            self.stored: list[dict[str, Tensor]] = []
            if self.kind not in LOGITS:
                held, (parts, _) = tensors(), FITTED[self.kind]
                self.standards = [
                    (float(each["mean"]), float(each["deviation"])) for each in ood["members"]
                ]
                self.stored = [
                    {part: held[f"{PREFIX}{m}.{part}"] for part in parts} for m in range(members)
                ]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"config.json: hydrasurgeon.decision: is no decision state: {error}"
            ) from error

    @torch.no_grad()
    def __call__(self, logits: Tensor, features: Tensor | None) -> dict[str, Tensor]:
        # Some devices have no float64.
        z = yes_or_no(logits.float().cpu())
        probs = calibrated(z, self.temperature, self.joint, self.bias)
        logs = probs.clamp_min(TINY_FLOAT).log()
        if (
            logits.shape[-1] == 1
        ):  # as its own library has it: the probability of yes, and its log-odds
            probs, logs = probs[:, 1:], logs[:, 1:] - logs[:, :1]
        score = self._score(z, None if features is None else features.float().cpu())
        fields = {
            "logits": logs.float(),
            "probabilities": probs.float(),
            "uncertainty": uncertainties(z, self.temperature, self.joint, self.bias)[0].float(),
            "ood_score": score.float(),
            "unfamiliar": score > self.threshold,
        }
        return {name: tensor.to(logits.device) for name, tensor in fields.items()}

    def _score(self, z: Tensor, features: Tensor | None) -> Tensor:
        if self.kind in LOGITS:
            terms, of_mean = LOGITS[self.kind]
            return of_mean(terms(z.double(), 1.0).mean(dim=1))
        assert features is not None
        score = FITTED[self.kind][1]
        each = [
            (score(stored, features[:, m], z[:, m]) - mean) / deviation
            for m, (stored, (mean, deviation)) in enumerate(
                zip(self.stored, self.standards, strict=True)
            )
        ]
        return torch.stack(each).mean(dim=0)


class _Deciding:
    """What `DecidingModel` and `DecidingHydra` have in common."""

    decides: Decides | None = None
    parts: Sequence[Sequence[nn.Linear]] = ()
    """The classifiers of each member whose inputs the state reads."""
    training: bool

    @classmethod
    def from_pretrained(cls, path: Any, *arguments: Any, config: Any = None, **options: Any) -> Any:
        made = super().from_pretrained(path, *arguments, config=config, **options)  # type: ignore[misc]
        model = made[0] if isinstance(made, tuple) else made
        members = list(model.members) if isinstance(model, HydraModel) else [model]
        hub = hub_options(options)
        model.decides = Decides(
            model.config, len(members), lambda: load_file(str(cached_file(path, STATE, **hub)))
        )
        if model.decides.stored:
            model.parts = note_features(members, model.config.num_labels)
        return made

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        """The model without its decision state: a copy could hold other weights, of which the state
        knows nothing.
        """
        warnings.warn(
            "the decision state is not saved with a model that may have been trained: calibrate the "
            "copy anew, or copy the directory",
            stacklevel=2,
        )
        config: Any = self.config  # type: ignore[has-type]
        self.config = copy.deepcopy(config)
        self.config.hydrasurgeon = {k: v for k, v in config.hydrasurgeon.items() if k != "decision"}
        try:
            super().save_pretrained(folder, **options)  # type: ignore[misc]
        finally:
            self.config = config

    def forward(self, *inputs: Any, labels: Tensor | None = None, **named: Any) -> Any:
        plain = super().forward  # type: ignore[misc]
        # A distilled model takes no labels, and has no loss.
        truth = {} if labels is None else {"labels": labels}
        if self.training or self.decides is None:
            return plain(*inputs, **truth, **named)
        as_tuple = named.pop("return_dict", None) is False
        loss: Tensor | None = None
        about: dict[str, Any] = {}
        notes: dict[Any, Tensor] = {}
        before = NOTES.set(notes)
        try:
            if isinstance(self, HydraModel):
                logits = self.member_logits(*inputs, **named)
            else:
                output = plain(*inputs, **truth, **named)
                logits, loss = output.logits[:, None], output.get("loss")
                about = {
                    key: output[key] for key in ("hidden_states", "attentions") if key in output
                }
        finally:
            NOTES.reset(before)
        fields = self.decides(logits, noted(self.parts, notes) if self.parts else None)
        if isinstance(self, HydraModel) and labels is not None:
            loss = loss_of(self.config, fields["logits"], labels)
        answer = DecidedOutput(loss=loss, **{**about, **fields})
        return answer.to_tuple() if as_tuple else answer


class DecidingModel(_Deciding, PrunedModel):  # type: ignore[misc]
    """One classifier with its decision state."""


class DecidingHydra(_Deciding, HydraModel):  # type: ignore[misc]
    """A hydra with its decision state."""


_Deciding.forward.__signature__ = inspect.signature(HydraModel.forward)  # type: ignore[attr-defined]
# Pipelines know classifiers by the name of their class.
DecidingModel.__name__ = DecidingHydra.__name__ = ARCH
