"""A decision for models that hydrasurgeon knows nothing of: a random forest, and a ConvNeXt of timm.

    python examples/any_model.py FOLDER

Both learn the handwritten digits 0 to 7 that scikit-learn brings along; 8 and 9 are the OOD data. The ConvNeXt has
random weights and a classifier fitted to them, so that nothing is downloaded. What each says is written as predictions
files; `calibrate` makes a decision of them, and `decide` takes it. The same on the command line:

    hydrasurgeon calibrate --predictions val.safetensors --fit-predictions train.safetensors \\
        --ood-predictions eights.safetensors -o decision.safetensors
    hydrasurgeon predict --decision decision.safetensors --predictions new.safetensors -o answers.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

import hydrasurgeon as hs

Array = np.ndarray[Any, Any]
Answers = Callable[[Array], tuple[Array, Array]]
"""Images → logits and features."""


def forest(images: Array, labels: Array) -> Answers:
    """Fit a random forest. Log-probabilities serve as logits, and pixels as features."""
    from sklearn.ensemble import RandomForestClassifier

    trees = RandomForestClassifier(200, min_samples_leaf=2, random_state=0).fit(images, labels)
    return lambda rows: (np.log(trees.predict_proba(rows).clip(1e-6)), rows / 16)


def convnext(images: Array, labels: Array) -> Answers:
    """Fit the last layer of a ConvNeXt, whose inputs are the features."""
    import timm
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    model = timm.create_model("test_convnext", num_classes=8).eval()

    @torch.inference_mode()
    def features(rows: Array) -> torch.Tensor:
        pixels = torch.as_tensor(rows / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)
        large = torch.nn.functional.interpolate(pixels, size=(64, 64)).expand(-1, 3, -1, -1)
        return model.forward_head(model.forward_features(large), pre_logits=True)

    fitted = LogisticRegression(max_iter=1000).fit(features(images).numpy(), labels)
    model.head.fc.load_state_dict(
        {"weight": torch.as_tensor(fitted.coef_), "bias": torch.as_tensor(fitted.intercept_)}
    )

    @torch.inference_mode()
    def answers(rows: Array) -> tuple[Array, Array]:
        seen = features(rows)
        return model.head.fc(seen).numpy(), seen.numpy()

    return answers


def main(folder: Path) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order], labels[order]
    familiar, eights, nines = labels < 8, images[labels == 8], images[labels == 9]
    splits = zip(
        np.split(images[familiar], [500, 1100]),
        np.split(labels[familiar], [500, 1100]),
        strict=True,
    )
    train, val, test = splits
    for name, learn in {"forest": forest, "convnext": convnext}.items():
        answers = learn(*train)
        files = {}
        for part, (rows, truth) in {"train": train, "val": val, "eights": (eights, None)}.items():
            tensors = dict(zip(("logits", "features"), answers(rows), strict=True))
            if truth is not None:
                tensors["labels"] = truth
            files[part] = folder / f"{name}-{part}.safetensors"
            save_file(
                {key: np.ascontiguousarray(values) for key, values in tensors.items()}, files[part]
            )
        # A forest is surer of what it was trained on than of anything else: only VAL says how far to trust it.
        calibrated = hs.calibrate(
            predictions=files["val"],
            fit_predictions=files["train"],
            ood_predictions=[files["eights"]],
            out=folder / f"{name}.safetensors",
            force=True,
        )
        decision = hs.Decision.load(calibrated.path)
        inside, outside = decision.decide(*answers(test[0])), decision.decide(*answers(nines))
        right = (inside.labels == test[1]).mean()
        covered = inside.sets[np.arange(len(test[1])), test[1]].mean()
        sys.stdout.write(
            f"{name}: {calibrated.decision.ood.score}, accuracy {right:.3f}, sets that hold the label {covered:.3f}, "
            f"flagged {inside.unfamiliar.mean():.3f} of the digits known and "
            f"{outside.unfamiliar.mean():.3f} of the nines\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
