"""The models that benchmarks/quality.py compares, and how each is made in its workshop."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

from decision_models import Answers, together
from quality_rivals import Laplace, duo
from quality_rivals_trained import RIVALS, multiply_adds, rival
from quality_workshop import CIRCUITS, Row, Workshop
from safetensors.torch import load_file, save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.criteria import CRITERIA
from hydrasurgeon.families import family_of
from hydrasurgeon.problems.base import Outputs
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


def single_more(shop: Workshop) -> Row:
    return shop.of(shop.tuned(shop.base, 0))


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
    return Row(shop.logits(name, model), float(PASSES), features=False)


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

    return Row(shop.logits(name.lower(), model), multiply_adds(name), features=False)


def laplace(shop: Workshop) -> Row:
    """Covariance of the single model's classifier."""
    base = shop.answers(shop.base)
    train, val = base.sets["train"], base.sets["val"]
    assert train.features is not None
    assert val.features is not None
    assert val.labels is not None
    fitted = Laplace(train.features[:, 0], train.logits[:, 0])
    precision = fitted.best(val.features[:, 0], val.logits[:, 0], val.labels, shop.seed)
    sets = {}
    for name, each in base.sets.items():
        if name in ("train", "perturbed"):
            continue
        assert each.features is not None
        draws = fitted.draws(each.features[:, 0], each.logits[:, 0], precision, shop.seed)
        sets[name] = Outputs(draws, None, each.labels)
    return Row(Answers(sets, []), 1.0, features=False)


def asymmetric_duo(shop: Workshop) -> Row:
    path = shop.task.sidekick(shop.place, shop.seed)
    large, small = shop.answers(shop.base), shop.answers(path)
    val = large.sets["val"]
    assert val.labels is not None
    a, b = duo(val.logits[:, 0], small.sets["val"].logits[:, 0], val.labels)
    sets = {
        name: Outputs(a * each.logits + b * small.sets[name].logits, None, each.labels)
        for name, each in large.sets.items()
    }
    return Row(Answers(sets, []), 1 + shop.cost([path]), features=False)


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


def hydra_taylor(tuned: bool, behind: bool, shop: Workshop) -> Row:
    """Three draws from the heads that go first."""
    layers, last = (shop.task.behind, shop.task.behind_count) if behind else (None, None)
    paths = [shop.member("taylor", draw=draw, layers=layers) for draw in (1, 2, 3)]
    if tuned:
        paths = [shop.tuned(path, i, last=last) for i, path in enumerate(paths)]
    return shop.of(*paths)


def hydra_circ(tuned: bool, behind: bool, shop: Workshop) -> Row:
    """A circuit of each objective."""
    layers, last = (shop.task.behind, shop.task.behind_count) if behind else (None, None)
    paths = [shop.member(criterion, layers=layers) for criterion in CIRCUITS]
    if tuned:
        # The number of a tuned circuit is 0, as where it stands alone: one and the same file.
        paths = [
            shop.tuned(path, 0 if not behind else i, last=last) for i, path in enumerate(paths)
        ]
    return shop.of(*paths)


def single_longer(shop: Workshop) -> Row:
    return shop.of(shop.longer(shop.base, 0))


def ensemble_longer(shop: Workshop) -> Row:
    """The Deep Ensemble, each of its models trained on."""
    others = [Workshop(shop.place, number) for number, _ in shop.place.ensemble(shop.seed)]
    each = [other.answers(other.longer(other.base, 0)) for other in others]
    return Row(together(each), float(len(each)))


def hydra_longer(shop: Workshop) -> Row:
    """Draws by taylor that keep three quarters of the heads behind a trunk of half the layers, tuned behind it."""
    task = shop.task
    count = task.behind_count * shop.tower.heads // 4
    paths = []
    for draw in (1, 2, 3):
        out = shop.folder / f"taylor-{count}-draw{draw}-light.safetensors"
        if not out.exists():
            hs.prune(
                shop.scored("taylor"),
                method="taylor",
                sample=f"{count}/{2 * count}",
                layers=task.behind,
                seed=draw,
                out=out,
                force=True,
            )
        paths.append(shop.longer(out, draw, last=task.behind_count))
    return shop.of(*paths)


def built(tune: bool, shop: Workshop, *, longer: bool = False) -> Row:
    """What `build` makes within twice the single model's multiply-adds, perhaps of one that was trained on; members
    tuned where that is worth more on validation data."""
    kind = "-longer" if longer else "-tuned" if tune else ""
    out = shop.folder / f"built{kind}.safetensors"
    if not out.exists():
        task, specs = shop.task, shop.place.specs
        base = shop.longer(shop.base, 0) if longer else shop.base
        hs.build(
            base,
            data=specs["train"],
            val=specs["val"],
            ood=[specs[task.chooses]],
            out=out,
            budget="macs=2.0",
            candidates=task.candidates,
            score_limit=task.limit,
            seed=shop.seed,
            calibrate=False,
            device="cpu",
            dtype=shop.place.dtype,
            force=True,
            cache=shop.folder / ("build-longer" if longer else "build"),
            search=task.search,
            tune=str(recipe(shop)) if tune else None,
        )
        print(f"{shop.place.name} {shop.seed}: built", flush=True)
    return Row(shop.answers(out), shop.cost([out]))


def recipe(shop: Workshop) -> Path:
    """The task's recipe with its fields, as a file."""
    text = (
        resources.files("hydrasurgeon.tuning.recipes")
        .joinpath(f"{shop.task.recipe}.toml")
        .read_text()
    )
    fields = tomllib.loads(text)
    tables = {name: fields.pop(name) for name in list(fields) if isinstance(fields[name], dict)}
    fields["lr_grid"] = []
    fields |= {
        name: float(value) if "." in value or "e" in value else int(value)
        for name, value in shop.task.tuning.items()
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    for table, values in tables.items():
        lines += [
            f"[{table}]",
            *(f"{name} = {json.dumps(value)}" for name, value in values.items()),
        ]
    out = shop.folder / "tuning.toml"
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out


LONGER: dict[str, Callable[[Workshop], Row]] = {
    "Single, tuned longer": single_longer,
    "Deep Ensemble, tuned longer": ensemble_longer,
    "Hydra (Taylor) behind a trunk, tuned longer": hydra_longer,
    "built within 2x of the single tuned longer": partial(built, False, longer=True),
}
"""With about as many further steps as the base took."""

SINGLES = {
    "Taylor": "taylor",
    "CircAcc": "circuit-acc",
    "CircOOD": "circuit-ood",
    "CircAvg": "circuit-avg",
    "CAHP": "cahp",
    "HeadMap": "headmap",
}

ROWS: dict[str, Callable[[Workshop], Row]] = {
    "Single": lambda shop: shop.of(shop.base),
    "Single, same extra steps": single_more,
    "Deep Ensemble": deep_ensemble,
    f"MC Dropout, {PASSES} passes": mc_dropout,
    "LoRA-Ensemble": lora,
    "Last-layer Laplace": laplace,
    "Asymmetric Duo": asymmetric_duo,
    **{name: partial(trained_rival, name) for name in RIVALS},
    **{
        f"{name}, training-free": partial(one, c, False)
        for name, c in SINGLES.items()
        if c.partition("-")[0] in CRITERIA
    },
    "Hydra (Taylor), training-free": partial(hydra_taylor, False, False),
    "Hydra (Circ), training-free": partial(hydra_circ, False, False),
    "Hydra (Taylor) behind a trunk, training-free": partial(hydra_taylor, False, True),
    "Hydra (Circ) behind a trunk, training-free": partial(hydra_circ, False, True),
    "built within 2x": partial(built, False),
    "built within 2x, tuned": partial(built, True),
    "Hydra (Taylor), tuned": partial(hydra_taylor, True, False),
    "Hydra (Circ), tuned": partial(hydra_circ, True, False),
    "Hydra (Taylor) behind a trunk, tuned": partial(hydra_taylor, True, True),
    "Hydra (Circ) behind a trunk, tuned": partial(hydra_circ, True, True),
    **{
        f"{name}, tuned": partial(one, c, True)
        for name, c in SINGLES.items()
        if c.partition("-")[0] in CRITERIA
    },
    **LONGER,
}
