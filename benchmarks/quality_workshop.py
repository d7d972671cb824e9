"""One seed of one task of benchmarks/quality.py: where its models are made, answer, and are priced in multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from decision_models import Answers, together
from quality_tasks import Place, Task
from safetensors.torch import load_file, save_file
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.files.manifest import Tower
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.features import WithFeatures, classifiers

CIRCUITS = ("circuit-acc", "circuit-ood", "circuit-avg")
FROZEN = "mlp,embedding"
"""What no tuning moves, so that members share it exactly."""


@dataclass(frozen=True)
class Row:
    """What one model answers, and its multiply-adds as times the single model's."""

    answers: Answers
    macs: float


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
                tensors |= {
                    f"classifier.{number}.weight": each.weight,
                    f"classifier.{number}.bias": each.bias,
                }
            folder.mkdir(parents=True, exist_ok=True)
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, kept)
        read = load_file(kept)
        sets = {
            source: Outputs(
                read[f"{source}.logits"],
                read.get(f"{source}.features"),
                read.get(f"{source}.labels"),
            )
            for source in self.place.sources
        }
        count = sum(key.startswith("classifier.") for key in read) // 2
        linear = [
            (read[f"classifier.{i}.weight"], read[f"classifier.{i}.bias"]) for i in range(count)
        ]
        return Answers(sets, linear)

    @torch.inference_mode()
    def ran(self, model: Classifier, source: str, *, features: bool) -> dict[str, Tensor]:
        """One pass over decoded inputs, in the order of the samples."""
        parts: dict[str, list[Tensor]] = {}
        batches = self.place.batches(source, model)
        read = WithFeatures(model) if features else None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.task.mixed):
            for batch in batches:
                logits, seen = (model(batch.inputs), None) if read is None else read(batch.inputs)
                for key, tensor in (
                    ("logits", logits),
                    ("features", seen),
                    ("labels", batch.labels),
                ):
                    if tensor is not None:
                        parts.setdefault(key, []).append(
                            tensor if key == "labels" else tensor.float()
                        )
        order = torch.cat([batch.index for batch in batches]).argsort()
        return {key: torch.cat(tensors)[order] for key, tensors in parts.items()}

    def logits(self, name: str, made: Callable[[], Classifier]) -> Answers:
        """Logits alone, on what is reported and on what calibrates; each set kept in a file, and the model made if one
        is not there."""
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

    def scored(self, criterion: str, *, remove: int | None = None) -> Path:
        """The base with this criterion's scores in its manifest."""
        more = "" if remove is None else f"-{remove}"
        out = self.folder / f"scored-{criterion}{more}.safetensors"
        if out.exists():
            return out
        task, specs = self.task, self.place.specs
        method, _, objective = criterion.partition("-")
        keywords: dict[str, object] = {"method": method, "data": specs["train"]}
        if objective:
            keywords |= {
                "objective": objective,
                "search": task.search,
                "remove": remove or task.removed,
                "data": specs["val"],
            }
            keywords["ood"] = [] if objective == "acc" else [specs[task.chooses]]
        hs.score(
            self.base,
            out=out,
            limit=task.limit,
            seed=self.seed,
            device="cpu",
            force=True,
            **keywords,  # type: ignore[arg-type]
        )
        print(f"{self.place.name} {self.seed}: scored {out.stem}", flush=True)
        return out

    def member(
        self, criterion: str, *, draw: int | None = None, removed: int | None = None
    ) -> Path:
        """Without the heads that go first; or without some of these, drawn."""
        count = removed or self.task.removed
        out = (
            self.folder / f"{criterion}-{count}{'' if draw is None else f'-draw{draw}'}.safetensors"
        )
        if out.exists():
            return out
        method, _, objective = criterion.partition("-")
        pool = self.task.pool * count // self.task.removed
        amount = {"remove": count} if draw is None else {"sample": f"{count}/{pool}"}
        remove = None
        if criterion in CIRCUITS:
            remove = count if draw is None else pool
        hs.prune(
            self.scored(criterion, remove=remove),
            method=method,
            objective=objective or None,
            seed=draw or 0,
            out=out,
            force=True,
            **amount,
        )  # type: ignore[arg-type]
        return out

    @property
    def tower(self) -> Tower:
        """The base's only one: its layers and heads."""
        (tower,) = open_checkpoint(self.base).manifest.towers.values()
        return tower

    def tuned(
        self, source: Path, number: int, *, freeze: str | None = FROZEN, **fields: str
    ) -> Path:
        """Trained further by the task's recipe, with the seed `number`."""
        extra = "".join(f"-{key}{value}" for key, value in fields.items())
        extra += "" if freeze == FROZEN else "-all"
        out = self.folder / f"{source.stem}-tuned{number}{extra}.safetensors"
        if not out.exists():
            hs.finetune(
                source,
                data=self.place.specs["train"],
                recipe=self.task.recipe,
                set=self.task.tuning | fields,
                freeze=freeze,
                seed=10 * self.seed + number,
                limit=self.task.tuned_on,
                out=out,
                device="cpu",
                dtype=self.place.dtype,
                force=True,
            )
            print(f"{self.place.name} {self.seed}: tuned {out.stem}", flush=True)
        return out

    def cost(self, paths: Sequence[Path]) -> float:
        """Cost of a model, or of the hydra that several make, as a multiple of the single model's."""
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
