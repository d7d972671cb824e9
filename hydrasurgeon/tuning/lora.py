"""Low-rank changes of attention (LoRA, Hu et al., 2021): what trains instead of the projections, and stays beside them.

W + (alpha / rank) · B A, with B zero at the start. A LoRA-Ensemble (Mühlematter et al., 2024) is three members tuned
so, of which
`fuse` stores W once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.lowrank import changeable, halves

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.families.base import Family
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.files.manifest import Model
    from hydrasurgeon.tuning.recipes import Recipe

MARK = "lora_"
"""In the names of what trains; what stands before it depends on how files call the layer."""


def attach(
    module: nn.Module,
    recipe: Recipe,
    *,
    family: Family,
    model: Model,
    weights: Mapping[str, Weight],
    trainable: Callable[[str], bool],
) -> None:
    """Put low-rank changes beside attention's linear layers, in place; UsageError where none is trained, SurgeryError
    where the model does not run them."""
    import peft
    from torch import nn

    from hydrasurgeon.families.disk_names import DiskNamed

    def stored(name: str) -> Weight | None:
        """What files know of a layer's matrix."""
        parameter = f"{name}.weight"
        return weights.get(module.disk_name(parameter) if isinstance(module, DiskNamed) else parameter)

    if not any(changeable(weight) and trainable(weight.name) for weight in weights.values()):
        raise UsageError(
            "a recipe with lora_rank changes attention, and none of it is to be trained",
            hint="Freeze less: attention itself stays as it is.",
        )
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if (weight := stored(name)) is not None and changeable(weight)
        if trainable(weight.name)
    }
    linear = {name for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    if not linear or linear != set(layers) or _running(module, layers, family, model) != linear:
        raise SurgeryError(
            f"a recipe with lora_rank changes linear layers, and the attention of {model.arch} does not run as such",
            hint="Tune it whole, by a recipe without lora_rank.",
        )
    some = [name for name, layer in layers.items() if layer.weight.numel()]
    # peft takes a scale that is no whole number, whatever it declares.
    settings: dict[str, Any] = {"r": recipe.lora_rank, "lora_alpha": recipe.lora_alpha}
    config = peft.LoraConfig(**settings, target_modules=some, lora_dropout=0.0)
    peft.inject_adapter_in_model(config, module)


def _running(module: nn.Module, layers: Mapping[str, nn.Module], family: Family, model: Model) -> set[str]:
    """Which of the layers are called; others only hand their weights on, and a change beside them would never be
    seen."""
    import torch

    ran: set[str] = set()
    hooks = [layer.register_forward_hook(lambda *_, name=name: ran.add(name)) for name, layer in layers.items()]
    first = next(module.parameters())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        module.eval()
        module(family.example(model, 2, device=first.device, dtype=first.dtype))
    for hook in hooks:
        hook.remove()
    return ran | {name for name, layer in layers.items() if not layer.weight.numel()}  # type: ignore[union-attr,operator]


def trains(others: Callable[[str], bool], weights: Mapping[str, Weight]) -> Callable[[str], bool]:
    """The changes, and what else the recipe trains of the classifier."""

    def trainable(name: str) -> bool:
        if name not in weights:
            return MARK in name
        return weights[name].part == "classifier" and others(name)

    return trainable


def detach(module: nn.Module) -> dict[str, Tensor]:
    """Leave the module as it was built, and hand out the pairs by their names in files; the scale is a factor of B."""
    from hydrasurgeon.families.disk_names import DiskNamed

    pairs = {}
    for name, part in _changed(module).items():
        place, _, last = name.rpartition(".")
        setattr(module.get_submodule(place), last, part.get_base_layer())
        (adapter,) = part.active_adapters
        weight = f"{name}.weight"
        a, b = halves(module.disk_name(weight) if isinstance(module, DiskNamed) else weight)
        pairs[a] = part.lora_A[adapter].weight.detach()
        pairs[b] = part.scaling[adapter] * part.lora_B[adapter].weight.detach()
    return pairs


def _changed(module: nn.Module) -> dict[str, Any]:
    """Layers with changes beside them, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: part for name, part in module.named_modules() if isinstance(part, LoraLayer)}
