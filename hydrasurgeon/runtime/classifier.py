"""Checkpoint → live model: `load` gives one interface to backbones, members and hydras."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, Single, as_single, open_checkpoint
from hydrasurgeon.checkpoints.class_names import classifying, need_classes
from hydrasurgeon.checkpoints.layout import TensorSource, member_sources, selection
from hydrasurgeon.data import is_prepared, moved
from hydrasurgeon.data.readers import parted, with_reader
from hydrasurgeon.data.sources import in_memory
from hydrasurgeon.decision.state import Said, state_in
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.manifest import HydraManifest, Model
from hydrasurgeon.options.shared import ClassNames, Run
from hydrasurgeon.runtime.answering import Answering, Engine, FirstReader, collected, rows_in
from hydrasurgeon.runtime.features import LiveModel, WithFeatures
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.runtime.torch_tensors import assign, device_of, dtype_of, to_weights
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Prediction, Task, joined, need_feature
from hydrasurgeon.tasks.printed import Answers

Prepared = Tensor | Mapping[str, Tensor]
"""Samples after a model's `transform`: pixels, or the ids and mask of tokens."""
Item = str | tuple[str, str] | Path | bytes | Image.Image
"""A text, a pair of them, or a picture: a file, its content, or PIL's."""
Table = Any
"""A table of pandas, polars or pyarrow, or a mapping of columns."""


class Classifier(LiveModel, Engine):
    """A live model that answers with probabilities and decisions: the engine `torch`."""

    files: Mapping[str, str] = MappingProxyType({})
    """Texts that live data needs, such as a tokenizer's."""

    @property
    def facts(self) -> Model:
        return self.manifest.model

    @property
    def first(self) -> FirstReader | None:
        several = isinstance(self.module, Hydra) and len(self.module.members) > 1
        return super().first or (partial(first_member, self) if several else None)

    @property
    def notes(self) -> tuple[str, ...]:
        why = getattr(self.module, "why_apart", "")
        if not why:
            return ()
        return (f"{self.name}: its members run one after another, not side by side ({why})",)

    def __repr__(self) -> str:
        facts, members = self.facts, f"{self.members} member{'s' * (self.members > 1)}"
        state = "calibrated" if self.state is not None else "not calibrated"
        return (
            f"<{self.name}: {self.manifest.kind} of {facts.family}, {members}, {facts.task}, "
            f"{facts.num_classes} outputs, {state}>"
        )

    @property
    def classes(self) -> list[str] | list[int]:
        """The names of the classes, in the order of the probabilities; numbers where they have none."""
        return [*(self.facts.labels or range(self.facts.num_classes))]

    @torch.inference_mode()
    def predict_proba(
        self,
        inputs: Prepared | Item | Sequence[Item] | Table,
        *,
        cascade: bool | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> np.ndarray:
        """Return the probability of each class, [sample, class]; calibrated if there is a decision
        state.

        Examples:
            >>> hs.load("ready").predict_proba("bag.png").round(2)[0, :3].tolist()
            [0.0, 0.0, 0.0]
        """
        need_feature(self.task, "predict_proba", self.name, CheckpointError)
        if not is_prepared(inputs):
            return self._named(inputs, cascade, columns).probabilities
        return self.answered(inputs, cascade=cascade).probabilities

    @torch.inference_mode()
    def embed(
        self,
        inputs: Prepared | Item | Sequence[Item] | Table,
        *,
        columns: Mapping[str, str] | None = None,
    ) -> np.ndarray:
        """Return the features that the classifier reads, [sample, width]; a hydra's are its
        members' mean.

        Examples:
            >>> hs.load("backbone").embed(["bag.png", "boot.png"]).shape
            (2, 64)
        """
        need_feature(self.task, "--embeddings", self.name, CheckpointError)
        if is_prepared(inputs):
            (outputs,) = self.ask(inputs, features=True)
            read = outputs.features
        else:
            samples = in_memory(inputs, getattr(self.transform, "kind", "image"), columns)
            read = collected([self], samples, Run(), features=True).features
        assert read is not None
        mean: np.ndarray = read.mean(axis=1)
        return mean

    @overload
    def predict(self, inputs: Prepared, *, cascade: bool | None = None) -> Tensor: ...
    @overload
    def predict(
        self,
        inputs: Item | Sequence[Item] | Table,
        *,
        cascade: bool | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Answers: ...
    @torch.inference_mode()
    def predict(
        self,
        inputs: Any,
        *,
        cascade: bool | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Tensor | Answers:
        """Answer a text or picture, a list of them, a table, or the data at a path; by the decision
        state if there is one. `columns` maps an input to the table's name for it,
        {"text": "question"}.

        For prepared tensors, return class probabilities without a decision: the mean over the
        members, with `cascade` over those that ran.

        Examples:
            >>> answers = hs.load("ready").predict(["bag.png", "boot.png"])
            >>> answers
                  id  label  probability  total  ood_score  unfamiliar  answer
             bag.png    bag        0.998  0.019     -7.343       False     bag
            boot.png   boot        0.945  0.231     -6.391       False    boot
            >>> first = answers[0]
            >>> first["set"]
            ['bag']
        """
        if is_prepared(inputs):
            if not rows_in(inputs):
                return mean_probs(self.ask(inputs), self.task)
            in_stages = bool(cascade) and self.in_stages(cascade)
            parts = self.parts(inputs, in_stages, features=in_stages and self.reads)
            return mean_probs(parts, self.task)
        return self._named(inputs, cascade, columns).rows

    @torch.inference_mode()
    def decide(
        self,
        inputs: Prepared | Item | Sequence[Item] | Table,
        *,
        cascade: bool | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Prediction:
        """Return answers, prediction sets, uncertainties and OOD scores, as arrays that print
        themselves.

        By the state's cascade, unless `cascade` is False.

        Examples:
            >>> hs.load("ready").decide("bag.png").unfamiliar
            array([False])
        """
        if self.state is None:
            raise CheckpointError(
                f"{self.name}: has no decision state",
                hint="Run `hydrasurgeon calibrate` on it first.",
            )
        return self._named(inputs, cascade, columns)

    @torch.inference_mode()
    def compute(self, inputs: Any, *, features: bool) -> Said:
        if not rows_in(inputs):
            width = (self.state and self.state.record.ood.width) or 0
            words = len(self.task.axes) - 3
            logits = torch.zeros(0, self.members, *(0,) * words, self.facts.num_classes)
            read = torch.zeros(0, self.members, width)
            return Said(torch.arange(0), logits, read)
        inputs = self.placed(inputs)
        if features:
            logits, read = WithFeatures(self)(inputs)
            return Said(torch.arange(len(logits)), logits, read)
        logits = self(inputs)
        return Said(torch.arange(len(logits)), logits)

    def placed(self, inputs: Any) -> Any:
        """Move inputs to the model's device and dtype."""
        weight = next(self.parameters())
        return moved(_tensors(inputs), weight.device, weight.dtype)

    def _named(
        self, inputs: Any, cascade: bool | None, columns: Mapping[str, str] | None
    ) -> Prediction:
        """Answer with the names of samples and classes."""
        names = self.facts.labels
        if is_prepared(inputs):
            return replace(self.answered(inputs, cascade=cascade), names=names)
        need_classes(self.manifest, self.name)
        samples = in_memory(inputs, getattr(self.transform, "kind", "image"), columns)
        ids = [samples.name(i) for i in range(len(samples))]
        cascade = self.in_stages(cascade)
        pieces = Answering(
            [self], samples, Run(), order=range(len(ids)), cascade=cascade, features=self.reads
        )
        answers = [self.prediction_of(piece.parts, cascade) for piece in pieces]
        answers_of_all = joined(answers or [self.answered(torch.zeros(0), cascade=False)])
        answers_of_all = answers_of_all.about(lambda: [samples.read(i) for i in range(len(ids))])
        return replace(answers_of_all, ids=ids, names=names)


def _tensors(inputs: Any) -> Any:
    """Convert the inputs of a graph to tensors."""
    if isinstance(inputs, Mapping):
        return {name: torch.as_tensor(values) for name, values in inputs.items()}
    return torch.as_tensor(inputs)


@torch.inference_mode()
def first_member(
    model: Classifier, inputs: Any, features: bool
) -> tuple[Said, Callable[[Any], Said]]:
    """Run a hydra's first member as the first stage. The rest go on from the trunk that it has run."""
    hydra = model.module
    assert isinstance(hydra, Hydra)
    with_features = WithFeatures(model) if features else None
    plain, words = parted(inputs)

    def run(members: Sequence[int], started: Any, rows: Tensor) -> Said:
        call = hydra.part(members).finish
        if with_features is None:
            outputs = Said(rows, call(started))
        else:
            outputs = Said(rows, *with_features.of(call, started))
        if words is None or model.state is None:
            return outputs
        return outputs.blended(model.state, words[rows, :-1])

    plain = model.placed(plain)
    started = hydra.start(plain)
    first = run([0], started, torch.arange(rows_in(plain)))

    @torch.inference_mode()
    def finish(places: Any) -> Said:
        rows = torch.as_tensor(places)
        early = first.at(rows)
        late = run(range(1, len(hydra.members)), started.at(rows.to(early.logits.device)), rows)
        features_of_all = None
        if early.features is not None and late.features is not None:
            features_of_all = torch.cat([early.features, late.features], dim=1)
        return Said(rows, torch.cat([early.logits, late.logits], dim=1), features_of_all)

    return first, finish


def mean_probs(parts: Sequence[Said], task: Task = SINGLE) -> Float[Tensor, "batch klass"]:
    """Return the mean probabilities over the members that ran."""
    kind = kind_of(task)
    probs = torch.cat(
        [kind.probs(torch.as_tensor(part.logits).float()).mean(dim=1) for part in parts]
    )
    order = torch.cat([torch.as_tensor(part.rows) for part in parts]).argsort()
    return probs if len(parts) == 1 else probs[order.to(probs.device)]


def load(
    checkpoint: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    arch: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
) -> Classifier:
    """Load any checkpoint for inference; a CLIP without class names answers with image features.

    Examples:
        >>> hs.load("backbone").members
        1
    """
    names = ClassNames(classes=classes, template=template)
    opened = classifying(open_checkpoint(checkpoint, arch=arch), names)
    opened.check_weights()
    return as_classifier(opened, device=device, dtype=dtype)


def as_classifier(
    checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "float32", lean: bool = False
) -> Classifier:
    """Return the live model of an opened checkpoint. `lean` runs a single model as a hydra runs its
    members.
    """
    manifest = checkpoint.manifest
    target, precision = device_of(device), dtype_of(dtype)
    if manifest.kind == "hydra":
        module: nn.Module = _hydra(checkpoint, manifest)
    else:
        module = live_module(as_single(checkpoint), precision)
    family = checkpoint.family
    if lean and not isinstance(module, Hydra):
        module = Hydra([module], family.anatomy, mode="apart")
    transform = family.transform(manifest.model, files=checkpoint.files)
    state = state_in(checkpoint)
    words = None if state is None else state.words
    model = Classifier(
        module, manifest, with_reader(transform, words), name=checkpoint.name, state=state
    )
    model.files = checkpoint.files
    return model.to(device=target, dtype=precision).eval()


def live_module(checkpoint: Single, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the family's own module of a backbone or member, with its weights on the CPU."""
    manifest = checkpoint.manifest
    module = checkpoint.family.module(manifest.model, checkpoint.kept, files=checkpoint.files)
    expected = set(module.state_dict())
    tensors = checkpoint.tensors
    state = {
        name: to_weights(
            tensors.read(name), tensors[name].dtype, name=name, path=checkpoint.path
        ).to(dtype)
        for name in tensors
        if name in expected
    }
    assign(module, state, checkpoint.path)
    return module.eval()


def _hydra(checkpoint: Checkpoint, manifest: HydraManifest) -> Hydra:
    """Return M modules that run as one. Members that store one tensor share one parameter."""
    family, tensors = checkpoint.family, checkpoint.tensors
    # Two members that read the same rows of the same stored tensors get the same parameter.
    shared: dict[TensorSource, nn.Parameter] = {}

    def parameter(source: TensorSource) -> nn.Parameter:
        if source not in shared:
            raw, dtype = source.read(tensors), tensors[source.stored].dtype
            weights = to_weights(raw, dtype, name=source.stored, path=checkpoint.path)
            shared[source] = nn.Parameter(weights)
        return shared[source]

    modules = []
    sources_by_member = member_sources(manifest, checkpoint.weights, tensors)
    for member, sources in zip(manifest.members, sources_by_member, strict=True):
        kept = selection(member, checkpoint.weights)
        module = family.module(manifest.model, kept, files=checkpoint.files)
        state = {name: parameter(source) for name, source in sources.items()}
        assign(module, state, checkpoint.path)
        modules.append(module)
    return Hydra(modules, family.anatomy, trunk=manifest.fusion.trunk)
