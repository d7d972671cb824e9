"""Checkpoint → live model: `load` gives one interface to backbones, members and hydras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.checkpoints.class_names import with_class_names
from hydrasurgeon.checkpoints.layout import Source, member_sources, selection
from hydrasurgeon.checkpoints.reading import Checkpoint, Single, as_single, open_checkpoint
from hydrasurgeon.decision.cascaded import decided_in_steps
from hydrasurgeon.decision.scores.fitted import EnsembleScore
from hydrasurgeon.decision.state import Decided, State, decide
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import FITTED, stored_name
from hydrasurgeon.files.manifest import HydraManifest
from hydrasurgeon.runtime.cascaded import mean_probs, rows_in, said
from hydrasurgeon.runtime.features import LiveModel, reading
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.tensors import device_of, dtype_of, to_weights


class Classifier(LiveModel):
    """A live model that answers with probabilities and decisions."""

    @torch.inference_mode()
    def predict(self, inputs: Any, *, cascade: bool = False) -> Float[Tensor, "batch klass"]:
        """Class probabilities: the mean over the members', with `cascade` over those that its gate let run."""
        if cascade:
            return mean_probs(self, inputs)
        return self(inputs).float().softmax(dim=-1).mean(dim=1)

    @torch.inference_mode()
    def decide(self, inputs: Any, *, cascade: bool | None = None) -> Decided:
        """Answers, prediction sets, uncertainties and OOD scores; by the state's cascade, unless `cascade` is False."""
        state = self.state
        if state is None:
            raise CheckpointError(
                f"{self.name}: has no decision state", hint="Run `hydrasurgeon calibrate` on it first."
            )
        steps = state.record.cascade
        if not rows_in(inputs):
            logits = torch.zeros(0, self.members, self.manifest.model.num_classes)
            return decide(state, logits, torch.zeros(0, self.members, state.record.ood.width or 0))
        with reading(self) if state.fitted is not None else nullcontext() as read:
            if cascade or (cascade is None and steps is not None):
                parts = [part.on_cpu() for part in said(self, inputs, read)]
                assert steps is not None
                return decided_in_steps(state, steps, parts)
            logits, features = (self(inputs), None) if read is None else read(inputs)
        return decide(state, logits.float().cpu(), None if features is None else features.float().cpu())


def load(
    checkpoint: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    arch: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
) -> Classifier:
    """Load any checkpoint for inference; a CLIP without class names answers with image features."""
    opened = with_class_names(open_checkpoint(checkpoint, arch=arch), classes=classes, templates=template)
    opened.digests()
    return as_classifier(opened, device=device, dtype=dtype)


def as_classifier(
    checkpoint: Checkpoint, *, device: str = "auto", dtype: str = "float32", lean: bool = False
) -> Classifier:
    """The live model of an opened checkpoint; `lean` runs a single one as hydras run their members."""
    manifest = checkpoint.manifest
    target, precision = device_of(device), dtype_of(dtype)
    module = _hydra(checkpoint, manifest) if manifest.kind == "hydra" else live_module(as_single(checkpoint))
    family = checkpoint.family
    if lean and not isinstance(module, Hydra):
        module = Hydra([module], family.anatomy, mode="apart")
    transform = family.transform(manifest.model, files=checkpoint.files)
    model = Classifier(module, manifest, transform, name=checkpoint.name, state=state_in(checkpoint))
    return model.to(device=target, dtype=precision).eval()


def live_module(checkpoint: Single) -> nn.Module:
    """The family's own module of a backbone or member, with its weights in float32 on the CPU."""
    manifest = checkpoint.manifest
    module = checkpoint.family.module(manifest.model, manifest.towers, checkpoint.kept)
    expected = set(module.state_dict())
    tensors = checkpoint.tensors
    state = {
        name: to_weights(tensors.read(name), tensors[name].dtype, name=name, path=checkpoint.path)
        for name in tensors
        if name in expected
    }
    assign(module, state, checkpoint.path)
    return module.eval()


def _hydra(checkpoint: Checkpoint, manifest: HydraManifest) -> Hydra:
    """M modules that share the parameters the file stores once, run as one."""
    family = checkpoint.family
    # Two members that read the same rows of the same stored tensors get the same parameter.
    shared: dict[Source, nn.Parameter] = {}
    modules = []
    for member, sources in zip(
        manifest.members, member_sources(manifest, checkpoint.weights, checkpoint.tensors), strict=True
    ):
        module = family.module(manifest.model, manifest.towers, selection(member, checkpoint.weights))
        state = {}
        for name, source in sources.items():
            if source not in shared:
                raw, dtype = source.read(checkpoint.tensors), checkpoint.tensors[source.stored].dtype
                shared[source] = nn.Parameter(to_weights(raw, dtype, name=source.stored, path=checkpoint.path))
            state[name] = shared[source]
        assign(module, state, checkpoint.path)
        modules.append(module)
    return Hydra(modules, family.anatomy, trunk=manifest.fusion.trunk)


def assign(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Make these tensors the module's own, by their names in files; all of them, and no others."""
    missing, unexpected = module.load_state_dict(dict(state), strict=False, assign=True)
    if missing or unexpected:
        name = (missing or unexpected)[0]
        raise CheckpointError(
            f"{path}: tensor {name} {'is missing' if missing else 'does not belong to the architecture'}"
        )


def state_in(checkpoint: Checkpoint) -> State | None:
    """The decision state that a checkpoint carries, its tensors finite."""
    record = checkpoint.manifest.decision
    if record is None or record.ood.score not in FITTED:
        return None if record is None else State(record)

    def read(name: str) -> torch.Tensor:
        return to_weights(checkpoint.tensors.read(name), "F32", name=name, path=checkpoint.path)

    ood = record.ood
    parts = FITTED[ood.score][1]
    fits = tuple({part: read(stored_name(member, part)) for part in parts} for member in range(len(ood.members)))
    return State(record, EnsembleScore(ood.score, fits, ood.members))
