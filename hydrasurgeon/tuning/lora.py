"""Low-rank changes of attention (LoRA, Hu et al., 2021): what trains instead of the projections,
and is added to them.

W + (alpha / rank) · B A, with B zero at the start. A LoRA-Ensemble (Mühlematter et al., 2024) is
three such members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import SurgeryError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.families.base import Family
    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.files.manifest import Model
    from hydrasurgeon.tuning.recipes import Recipe

MARK = "lora_"
"""In the names of what trains; what stands before it depends on how files call the layer."""


def changeable(weight: Weight) -> bool:
    """Whether a weight may have a low-rank change: attention's matrices."""
    attention = weight.part in ("attention", "output")
    return attention and weight.heads is not None and len(weight.shape) == 2


def attach(
    module: nn.Module,
    recipe: Recipe,
    *,
    family: Family,
    model: Model,
    weights: Mapping[str, Weight],
    trainable: Callable[[str], bool],
) -> None:
    """Put low-rank changes beside attention's linear layers, in place; UsageError where none is
    trained, SurgeryError where the model does not run them.
    """
    import peft
    from torch import nn

    from hydrasurgeon.families.disk_names import DiskNamed

    def stored(name: str) -> Weight | None:
        """What files know of a layer's matrix."""
        parameter = f"{name}.weight"
        return weights.get(
            module.disk_name(parameter) if isinstance(module, DiskNamed) else parameter
        )

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
            (
                f"a recipe with lora_rank changes linear layers, and the attention of {model.arch} "
                "does not run as such"
            ),
            hint="Tune it whole, by a recipe without lora_rank.",
        )
    some = [name for name, layer in layers.items() if layer.weight.numel()]
    # peft takes a scale that is no whole number, whatever it declares.
    settings: dict[str, Any] = {"r": recipe.lora_rank, "lora_alpha": recipe.lora_alpha}
    config = peft.LoraConfig(**settings, target_modules=some, lora_dropout=0.0)
    peft.inject_adapter_in_model(config, module)


def _running(
    module: nn.Module, layers: Mapping[str, nn.Module], family: Family, model: Model
) -> set[str]:
    """Which of the layers are called; others only hand their weights on, and a change beside them
    would never be seen.
    """
    import torch

    ran: set[str] = set()
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: ran.add(name))
        for name, layer in layers.items()
    ]
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


def merge(module: nn.Module) -> None:
    """Leave the module as it was built, with the changes added to its weights; the sum is taken in
    float64.
    """
    from peft.tuners.lora import LoraLayer
    from torch import no_grad

    changed: dict[str, Any] = {
        name: part for name, part in module.named_modules() if isinstance(part, LoraLayer)
    }
    for name, part in changed.items():
        place, _, last = name.rpartition(".")
        layer, (adapter,) = part.get_base_layer(), part.active_adapters
        with no_grad():
            change = part.lora_B[adapter].weight.double() @ part.lora_A[adapter].weight.double()
            layer.weight.copy_(layer.weight.double() + part.scaling[adapter] * change)
        setattr(module.get_submodule(place), last, layer)
