"""timm's way in: `timm.create_model("local-dir:DIR")` builds pruned ViTs and hydras from what we
wrote.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.timm_vit.family import add_architecture
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.tasks import task_of

ENTRY = "hydrasurgeon_vit"
"""The architecture that config.json names; its model_args only inform, the manifest decides."""


class TimmHydra(nn.Module):
    """A hydra as a classifier of timm's kind: logits [batch, class] that say what the members' mean
    does.
    """

    def __init__(self, hydra: nn.Module, model: Model) -> None:
        super().__init__()
        self.hydra = hydra
        self.num_classes = model.num_classes
        self.task = task_of(model)

    def member_logits(self, x: Tensor) -> Tensor:
        """Return the members' logits, [batch, member, class]."""
        return self.hydra(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return [batch, member, token, embed]: the result of every member's `forward_features`."""
        return torch.stack([member.forward_features(x) for member in self._members], dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of `forward` from these features.

        With `pre_logits` return each member's pooled features, [batch, member, embed].
        """
        pairs = zip(self._members, x.unbind(1), strict=True)
        outputs = [
            member.forward_head(features, pre_logits=pre_logits) for member, features in pairs
        ]
        stacked = torch.stack(outputs, dim=1)
        return stacked if pre_logits else kind_of(self.task).merged(stacked)

    def forward(self, x: Tensor) -> Tensor:
        return kind_of(self.task).merged(self.member_logits(x))

    @property
    def _members(self) -> list[Any]:
        return list(self.hydra.members)  # type: ignore[arg-type]


def hydrasurgeon_vit(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: str | Path | None = None,
    pretrained_model_args: Any = None,
    **arguments: Any,
) -> nn.Module:
    """Build the model of a directory, always with its weights.

    The kept heads mean something for one set of weights only.
    """
    from hydrasurgeon.runtime.classifier import as_classifier

    where = _value(pretrained_cfg, "file") or _value(pretrained_cfg, "hf_hub_id")
    if where is None:
        raise UsageError(
            f"timm:{ENTRY} is built from a directory that hydrasurgeon wrote",
            hint='Use timm.create_model("local-dir:DIR").',
        )
    opened = open_checkpoint(where if os.path.exists(where) else f"timm:{where}")
    opened.check_weights()
    classifier = as_classifier(opened, device="cpu").train()
    model = opened.manifest.model
    recorded = {*model.config.get("model_args", {}), "backbone"}
    num_classes = arguments.pop("num_classes", model.num_classes)
    hydra = opened.manifest.kind == "hydra"
    unknown = sorted({*arguments} - recorded) + (
        ["num_classes"] if hydra and num_classes != model.num_classes else []
    )
    if unknown:
        raise UsageError(
            f"timm:{ENTRY}: {', '.join(unknown)} cannot be set on a pruned model or a hydra"
        )
    module: Any = TimmHydra(classifier.module, model) if hydra else classifier.module
    if num_classes != model.num_classes:
        module.reset_classifier(num_classes)
    module.pretrained_cfg = module.default_cfg = pretrained_cfg
    return module.requires_grad_(True)


def _value(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, dict) else getattr(config, key, None)


def register() -> None:
    add_architecture(hydrasurgeon_vit)
