"""The models that benchmarks/quality.py compares, and how each is made in its workshop."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from decision_models import together
from quality_rivals_trained import RIVALS, multiply_adds, rival
from quality_workshop import CIRCUITS, Row, Workshop
from safetensors.torch import load_file, save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.families import family_of
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.dropout import MonteCarlo
from hydrasurgeon.stages.export import export

PASSES = 5
"""Passes of MC Dropout."""
CHANCE = "0.1"
"""Rate of dropout, in tuning and in those passes."""


def deep_ensemble(shop: Workshop) -> Row:
    bases = shop.place.ensemble(shop.seed)
    each = [shop.answers(base, f"base-{number}") for number, base in bases]
    return Row(together(each), float(len(each)))


def mc_dropout(shop: Workshop) -> Row:
    """Tuned by the same steps with dropout, which then stays on."""
    whole = as_classifier(open_checkpoint(shop.base), device="cpu")
    within = bool(list(family_of(whole.manifest.model).dropouts(whole.module)))
    path = shop.tuned(shop.base, 0, dropout=CHANCE) if within else shop.tuned(with_chances(shop), 0)

    def model() -> Classifier:
        loaded = as_classifier(open_checkpoint(path), device="cpu")
        for each in family_of(loaded.manifest.model).dropouts(loaded.module):
            each.p = float(CHANCE)
        return Classifier(
            MonteCarlo(loaded.module, PASSES, shop.seed), loaded.manifest, loaded.transform
        ).eval()

    name = "mc-dropout" if within else "mc-dropout-of-attention"
    return Row(shop.logits(name, model), float(PASSES))


def with_chances(shop: Workshop) -> Path:
    """The base as a folder whose configuration has dropout: of embeddings and of attention's weights, where blocks have
    no layers of it."""
    folder = shop.folder / "base-with-dropout"
    if not folder.exists():
        export(shop.base, format="padded", out=f"{folder}/")
        config = json.loads((folder / "config.json").read_text())
        chances = {
            "hidden_dropout_prob": float(CHANCE),
            "attention_probs_dropout_prob": float(CHANCE),
        }
        (folder / "config.json").write_text(json.dumps(config | chances))
        # The manifest, which says what config.json said.
        (folder / "heads.json").unlink()
        weights = load_file(folder / "model.safetensors")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def trained_rival(name: str, shop: Workshop) -> Row:
    """From random weights, by the same steps as the base."""

    def model() -> Classifier:
        base = as_classifier(open_checkpoint(shop.base), device="cpu")
        return rival(name, shop.place, shop.seed, shop.folder, base)

    return Row(shop.logits(name.lower(), model), multiply_adds(name))


def lora(shop: Workshop) -> Row:
    """Three models that were tuned from the base by low-rank changes of attention."""
    paths = []
    for number in range(3):
        out = shop.folder / f"lora-{number}.safetensors"
        if not out.exists():
            fields = {
                k: v for k, v in shop.task.tuning.items() if k in ("max_length", "label_smoothing")
            }
            hs.finetune(
                shop.base,
                data=shop.place.specs["train"],
                recipe="lora",
                set=fields | {"epochs": shop.task.tuning.get("epochs", "3")},
                seed=10 * shop.seed + number,
                limit=shop.task.tuned_on,
                out=out,
                device="cpu",
                dtype=shop.place.dtype,
                force=True,
            )
        paths.append(out)
    return shop.of(*paths)


def one(criterion: str, tuned: bool, shop: Workshop) -> Row:
    path = shop.member(criterion)
    return shop.of(shop.tuned(path, 0) if tuned else path)


def hydra_taylor(shop: Workshop) -> Row:
    """Three draws from the heads that go first, each tuned."""
    paths = [shop.member("taylor", draw=draw) for draw in (1, 2, 3)]
    return shop.of(*(shop.tuned(path, i) for i, path in enumerate(paths)))


def hydra_circ(shop: Workshop) -> Row:
    """A circuit of each objective, tuned; its number is 0, as where it stands alone: one file."""
    return shop.of(*(shop.tuned(shop.member(criterion), 0) for criterion in CIRCUITS))


SINGLES = {
    "Taylor": "taylor",
    "CircAcc": "circuit-acc",
    "CircOOD": "circuit-ood",
    "CircAvg": "circuit-avg",
}

ROWS: dict[str, Callable[[Workshop], Row]] = {
    "Single": lambda shop: shop.of(shop.base),
    "Deep Ensemble": deep_ensemble,
    f"MC Dropout, {PASSES} passes": mc_dropout,
    "LoRA-Ensemble": lora,
    **{name: partial(trained_rival, name) for name in RIVALS},
    **{f"{name}, training-free": partial(one, c, False) for name, c in SINGLES.items()},
    "Hydra (Taylor), tuned": hydra_taylor,
    "Hydra (Circ), tuned": hydra_circ,
    "Taylor, tuned": partial(one, "taylor", True),
    "CircAvg, tuned": partial(one, "circuit-avg", True),
}
