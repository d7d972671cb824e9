"""MC Dropout (Gal & Ghahramani, 2016): pass m draws its masks from (seed, m), anew for every batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.runtime.classifier import Classifier, as_classifier


class MonteCarlo(nn.Module):
    """A model that answers several times: [batch, pass, class]."""

    def __init__(self, module: nn.Module, passes: int, seed: int) -> None:
        super().__init__()
        self.inner = module
        self.passes, self.seed = passes, seed

    def train(self, mode: bool = True) -> MonteCarlo:
        """Nothing trains; what drops stays on."""
        super().train(False)
        for module in dropping(self.inner):
            module.training = True
        return self

    def forward(self, inputs: object) -> Float[Tensor, "batch pass klass"]:
        weight = next(self.parameters())
        devices = [weight.device] if weight.is_cuda else []
        answers = []
        with torch.random.fork_rng(devices=devices):
            for number in range(self.passes):
                drawn = np.random.SeedSequence((self.seed, number)).generate_state(1)[0]
                torch.manual_seed(int(drawn))
                answers.append(self.inner(inputs))
        return torch.stack(answers, dim=1)


def dropping(module: nn.Module) -> Iterator[nn.Module]:
    """Layers that drop, and those that hand such a layer's chance on to fused attention while they
    train.
    """
    for part in module.modules():
        held = any(isinstance(child, nn.Dropout) and child.p > 0 for child in part.children())
        chance = getattr(part, "attention_dropout", getattr(part, "dropout_prob", 0.0))
        drops = isinstance(part, nn.Dropout) and part.p > 0
        if drops or held or (isinstance(chance, float) and chance > 0):
            yield part


def sampled(
    checkpoint: Checkpoint, passes: int, *, seed: int, device: str, dtype: str
) -> Classifier:
    """A single model with its own dropout on; refused where it has none."""
    if checkpoint.manifest.kind == "hydra":
        raise SurgeryError(
            (
                f"{checkpoint.name}: --mc-dropout takes a single model, and a hydra has members of "
                "its own"
            ),
            hint="Leave --mc-dropout out, or give the model the hydra was made from.",
        )
    model = as_classifier(checkpoint, device=device, dtype=dtype)
    if next(dropping(model.module), None) is None:
        bare = not checkpoint.recorded and checkpoint.path.suffix == SUFFIX
        raise SurgeryError(
            f"{model.name}: has no dropout that --mc-dropout could turn on",
            hint="Give the file's architecture with a rate: --arch timm:NAME,proj_drop_rate=0.1."
            if bare
            else "Passes differ where a model was built, and best trained, with dropout.",
        )
    model.module = MonteCarlo(model.module, passes, seed)
    return model.eval()
