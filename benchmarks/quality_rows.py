"""The models that benchmarks/quality.py compares: how each is made, what it answers, and what it costs in multiply-adds."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import torch
from answers import Answers, together
from quality_tasks import Place, Task
from rivals import Laplace, duo
from rivals_trained import RIVALS, multiply_adds, rival
from safetensors.torch import load_file, save_file
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.criteria import CRITERIA
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.decision.fitting import Outputs
from hydrasurgeon.families import family_of
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.dropout import MonteCarlo, Sampled
from hydrasurgeon.runtime.features import classifiers, reading
from hydrasurgeon.stages.export import export

__all__ = ["CIRCUITS", "ROWS", "Row", "Workshop"]

PASSES = 5
"""Of MC Dropout."""
CHANCE = "0.1"
"""Of dropout, in tuning and in those passes."""
CIRCUITS = ("circuit-acc", "circuit-ood", "circuit-avg")
FROZEN = "mlp,embedding"
"""What no tuning moves, so that members share it exactly."""


@dataclass(frozen=True)
class Row:
    """What one model answers, and its multiply-adds as times the single model's."""

    answers: Answers
    macs: float
    features: bool = True
    """Whether scores of features are defined for it."""


class Workshop:
    """One seed of one task: everything that is made of its base."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.seed = place, seed
        self.folder = place.cache / f"seed-{seed}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.base = place.base(seed)

    @property
    def task(self) -> Task:
        return self.place.task

    def answers(self, path: Path, name: str | None = None) -> Answers:
        """Logits and features on every set, in bfloat16 autocast where the task says so; kept in a folder."""
        folder = self.folder / "answers" / (name or path.stem)
        kept = folder / "answers.safetensors"
        if not kept.exists():
            model = as_classifier(open_checkpoint(path), device="cpu", lean=True)
            tensors: dict[str, Tensor] = {}
            for source in self.place.sources:
                for key, tensor in self.ran(model, source, features=True).items():
                    tensors[f"{source}.{key}"] = tensor
            for number, each in enumerate(classifiers(model)):
                tensors |= {f"classifier.{number}.weight": each.weight, f"classifier.{number}.bias": each.bias}  # fmt: skip
            folder.mkdir(parents=True, exist_ok=True)
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, kept)
        read = load_file(kept)
        sets = {
            source: Outputs(read[f"{source}.logits"], read.get(f"{source}.features"), read.get(f"{source}.labels"))
            for source in self.place.sources
        }  # fmt: skip
        count = sum(key.startswith("classifier.") for key in read) // 2
        linear = [(read[f"classifier.{i}.weight"], read[f"classifier.{i}.bias"]) for i in range(count)]  # fmt: skip
        return Answers(sets, linear)

    @torch.inference_mode()
    def ran(self, model: Classifier, source: str, *, features: bool) -> dict[str, Tensor]:
        """One pass over decoded inputs, in the order of the samples."""
        parts: dict[str, list[Tensor]] = {}
        batches = self.place.batches(source, model)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.task.mixed), (reading(model) if features else nullcontext()) as read:  # fmt: skip
            for batch in batches:
                logits, seen = (model(batch.inputs), None) if read is None else read(batch.inputs)
                for key, tensor in (("logits", logits), ("features", seen), ("labels", batch.labels)):  # fmt: skip
                    if tensor is not None:
                        parts.setdefault(key, []).append(tensor if key == "labels" else tensor.float())  # fmt: skip
        order = torch.cat([batch.index for batch in batches]).argsort()
        return {key: torch.cat(tensors)[order] for key, tensors in parts.items()}

    def logits(self, name: str, made: Callable[[], Classifier]) -> Answers:
        """Logits alone, on what is reported and on what calibrates; each set kept in a file, and the model made if one is not there."""
        folder = self.folder / "answers" / name
        sets = {}
        model: Classifier | None = None
        for source in self.place.sources:
            if source in ("train", "perturbed"):
                continue
            kept = folder / f"{source}.safetensors"
            if not kept.exists():
                model = model or made()
                tensors = self.ran(model, source, features=False)
                folder.mkdir(parents=True, exist_ok=True)
                save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, kept)
            read = load_file(kept)
            sets[source] = Outputs(read["logits"], None, read.get("labels"))
        return Answers(sets, [])

    def scored(self, criterion: str, *, layers: str | None = None, remove: int | None = None) -> Path:  # fmt: skip
        """The base with this criterion's scores in its manifest."""
        where = "" if layers is None else f"-layers{layers}"
        more = "" if remove is None else f"-{remove}"
        out = self.folder / f"scored-{criterion}{where}{more}.safetensors"
        if out.exists():
            return out
        task, specs = self.task, self.place.specs
        method, _, objective = criterion.partition("-")
        keywords: dict[str, object] = {"method": method, "data": specs["train"], "layers": layers}
        if objective:
            keywords |= {"objective": objective, "search": task.search, "remove": remove or task.removed, "data": specs["val"]}  # fmt: skip
            keywords["ood"] = [] if objective == "acc" else [specs[task.chooses]]
        hs.score(self.base, out=out, limit=task.limit, seed=self.seed, device="cpu", force=True, **keywords)  # type: ignore[arg-type]  # fmt: skip
        print(f"{self.place.name} {self.seed}: scored {out.stem}", flush=True)
        return out

    def member(self, criterion: str, *, draw: int | None = None, layers: str | None = None, removed: int | None = None) -> Path:  # fmt: skip
        """Without the heads that go first; or without some of these, drawn."""
        count = removed or self.task.removed
        if layers is not None:
            count = min(count, self.most_behind)
        name = f"{criterion}-{count}" + ("" if draw is None else f"-draw{draw}") + ("" if layers is None else "-behind")  # fmt: skip
        out = self.folder / f"{name}.safetensors"
        if out.exists():
            return out
        method, _, objective = criterion.partition("-")
        pool = min(self.task.pool * count // self.task.removed, self.most_behind if layers else 10**6)  # fmt: skip
        circuit = criterion in CIRCUITS
        amount = {"remove": count} if draw is None else {"sample": f"{count}/{pool}"}
        remove = (count if draw is None else pool) if circuit else None
        source = self.scored(criterion, layers=layers if circuit else None, remove=remove)
        hs.prune(source, method=method, objective=objective or None, layers=layers, seed=draw or 0, out=out, force=True, **amount)  # type: ignore[arg-type]  # fmt: skip
        return out

    @property
    def most_behind(self) -> int:
        """Heads that may go behind the trunk: all but one of each layer, about."""
        (tower,) = open_checkpoint(self.base).manifest.towers.values()
        return self.task.behind_count * tower.heads * 3 // 4

    def tuned(self, source: Path, number: int, *, last: int | None = None, freeze: str | None = FROZEN, **fields: str) -> Path:  # fmt: skip
        """Trained further by the task's recipe, with the seed `number`."""
        task = self.task
        extra = "".join(f"-{key}{value}" for key, value in fields.items()) + ("" if freeze == FROZEN else "-all")  # fmt: skip
        out = self.folder / f"{source.stem}-tuned{number}{extra}{'' if last is None else '-last'}.safetensors"  # fmt: skip
        if out.exists():
            return out
        more = {} if last is None else {"last_blocks": str(last)}
        hs.finetune(
            source, data=self.place.specs["train"], recipe=task.recipe, set=task.tuning | fields | more, freeze=freeze,
            seed=10 * self.seed + number, limit=task.tuned_on, out=out, device="cpu", dtype=self.place.dtype, force=True,
        )  # fmt: skip
        print(f"{self.place.name} {self.seed}: tuned {out.stem}", flush=True)
        return out

    def longer(self, source: Path, number: int, *, last: int | None = None) -> Path:
        """Trained further on all that the base was trained on: all of it, or, but for MLPs, its last blocks."""
        task = self.task
        out = self.folder / f"{source.stem}-longer{number}{'' if last is None else '-last'}.safetensors"  # fmt: skip
        if not out.exists():
            freeze, more = (None, {}) if last is None else (FROZEN, {"last_blocks": str(last)})
            hs.finetune(
                source, data=task.everything(self.place), recipe=task.recipe, set=task.longer | more, freeze=freeze, seed=10 * self.seed + number,
                out=out, device="cpu", dtype=self.place.dtype, force=True,
            )  # fmt: skip
            print(f"{self.place.name} {self.seed}: tuned {out.stem}", flush=True)
        return out

    def cost(self, paths: Sequence[Path]) -> float:
        """Of a model, or of the hydra that several make, as times the single model's."""
        name = self.folder / "fused.safetensors"
        whole = paths[0] if len(paths) == 1 else hs.fuse(list(paths), out=name, force=True).path
        return self._macs(whole) / self._macs(self.base)

    def _macs(self, path: Path) -> int:
        model = as_classifier(open_checkpoint(path), device="cpu", lean=True)
        samples = open_data(self.place.specs["test"], limit=1)
        batch = next(iter(Batches(samples, model.transform, batch_size=1, workers=0)))
        return macs(model, batch.inputs)

    def of(self, *paths: Path) -> Row:
        """A single model, or a hydra: with MLPs that all members share it answers as they do."""
        each = [self.answers(path) for path in paths]
        return Row(each[0] if len(each) == 1 else together(each), self.cost(paths))


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
        return Sampled(MonteCarlo(loaded.module, PASSES, shop.seed), loaded.manifest, loaded.transform).eval()  # fmt: skip

    name = "mc-dropout" if within else "mc-dropout-of-attention"
    return Row(shop.logits(name, model), float(PASSES), features=False)


def with_chances(shop: Workshop) -> Path:
    """The base as a folder whose configuration has dropout: of embeddings and of attention's weights, where blocks have no layers of it."""
    folder = shop.folder / "base-with-dropout"
    if not folder.exists():
        export(shop.base, format="padded", out=f"{folder}/")
        config = json.loads((folder / "config.json").read_text())
        chances = {"hidden_dropout_prob": float(CHANCE), "attention_probs_dropout_prob": float(CHANCE)}  # fmt: skip
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
    """Of the single model's classifier."""
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
            fields = {k: v for k, v in shop.task.tuning.items() if k in ("max_length", "label_smoothing")}  # fmt: skip
            hs.finetune(
                shop.base, data=shop.place.specs["train"], recipe="lora", set=fields | {"epochs": shop.task.tuning.get("epochs", "3")}, seed=10 * shop.seed + number,
                limit=shop.task.tuned_on, out=out, device="cpu", dtype=shop.place.dtype, force=True,
            )  # fmt: skip
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
        paths = [shop.tuned(path, 0 if not behind else i, last=last) for i, path in enumerate(paths)]  # fmt: skip
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
    (tower,) = open_checkpoint(shop.base).manifest.towers.values()
    count = task.behind_count * tower.heads // 4
    paths = []
    for draw in (1, 2, 3):
        out = shop.folder / f"taylor-{count}-draw{draw}-light.safetensors"
        if not out.exists():
            hs.prune(shop.scored("taylor"), method="taylor", sample=f"{count}/{2 * count}", layers=task.behind, seed=draw, out=out, force=True)  # fmt: skip
        paths.append(shop.longer(out, draw, last=task.behind_count))
    return shop.of(*paths)


def built(tune: bool, shop: Workshop, *, longer: bool = False) -> Row:
    """What `build` makes within twice the single model's multiply-adds, perhaps of one that was trained on; members tuned where that is worth more on validation data."""
    kind = "-longer" if longer else "-tuned" if tune else ""
    out = shop.folder / f"built{kind}.safetensors"
    if not out.exists():
        task, specs = shop.task, shop.place.specs
        base = shop.longer(shop.base, 0) if longer else shop.base
        hs.build(
            base, data=specs["train"], val=specs["val"], ood=[specs[task.chooses]], out=out, budget="macs=2.0", candidates=task.candidates,
            score_limit=task.limit, seed=shop.seed, calibrate=False, device="cpu", dtype=shop.place.dtype, force=True,
            cache=shop.folder / ("build-longer" if longer else "build"), search=task.search, tune=str(recipe(shop)) if tune else None,
        )  # fmt: skip
        print(f"{shop.place.name} {shop.seed}: built", flush=True)
    return Row(shop.answers(out), shop._macs(out) / shop._macs(shop.base))


def recipe(shop: Workshop) -> Path:
    """The task's recipe with its fields, as a file."""
    text = resources.files("hydrasurgeon.tuning.recipes").joinpath(f"{shop.task.recipe}.toml").read_text()  # fmt: skip
    fields = tomllib.loads(text)
    tables = {name: fields.pop(name) for name in list(fields) if isinstance(fields[name], dict)}
    fields["lr_grid"] = []
    fields |= {name: float(value) if "." in value or "e" in value else int(value) for name, value in shop.task.tuning.items()}  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]  # fmt: skip
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
    "Taylor": "taylor", "CircAcc": "circuit-acc", "CircOOD": "circuit-ood", "CircAvg": "circuit-avg", "CAHP": "cahp", "HeadMap": "headmap",
}  # fmt: skip

ROWS: dict[str, Callable[[Workshop], Row]] = {
    "Single": lambda shop: shop.of(shop.base),
    "Single, same extra steps": single_more,
    "Deep Ensemble": deep_ensemble,
    f"MC Dropout, {PASSES} passes": mc_dropout,
    "LoRA-Ensemble": lora,
    "Last-layer Laplace": laplace,
    "Asymmetric Duo": asymmetric_duo,
    **{name: partial(trained_rival, name) for name in RIVALS},
    **{f"{name}, training-free": partial(one, c, False) for name, c in SINGLES.items() if c.partition("-")[0] in CRITERIA},
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
    **{f"{name}, tuned": partial(one, c, True) for name, c in SINGLES.items() if c.partition("-")[0] in CRITERIA},
    **LONGER,
}  # fmt: skip
