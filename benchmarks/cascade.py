"""What cascades lose and cost: quality on three real tasks, and time on this machine.

Quality, three seeds each, of the models in benchmarks/decision_models.py and benchmarks/trunk.py (data sets stand there too):

    fashion-mnist   three ViTs trained from random weights, three tuned members of each, no trunk
    trunk           the first of them, three tuned members that share half of the layers
    minilm          all-MiniLM-L6-v2, three members of it, untuned, each behind a classifier of its own, no trunk

`calibrate --cascade` fits each to validation data, and to OOD data (`textures`, `docstrings`) that are never
reported; drops are
of test data and of near and far OOD data that chose nothing, in points, against the full hydra. Beside what was
asked for
(`--max-drop 0.5`, `--budget 1.2`), the whole curve: what the best gate within each budget loses. Costs are
multiply-adds,
in multiples of the single model's. Writes benchmarks/results/cascade.json, piece by piece.

Time (`--piece timing`, alone on the machine): interleaved medians over batches of real test data, the single model, the
full
hydra, its cascade within 1.2 single models' multiply-adds, and the same with every row let through.

    python benchmarks/cascade.py [--piece fashion-mnist|trunk|minilm|timing] [--shared ../shared] [--cache FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trunk
from decision import evidence
from decision_models import SEEDS, TASKS, Answers, Source, drawn
from decision_models import images as image_sets
from harness import machine
from safetensors.torch import load_file, save_file
from scratch_vits import NAMES, scratch_vit

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batches, fit_classes, moved, open_data
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.decision.cascaded import in_steps, step_state
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import Cascade, Gate
from hydrasurgeon.measuring.cascades.choice import Sides, drops_of, sides
from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf
from hydrasurgeon.measuring.cost import StepMacs, macs, single_macs, step_macs
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.options.shared import Run
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import classifiers

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "cascade.json"
BUDGETS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""Costs of the curve, as multiples of the single model's multiply-adds."""
SCORES = ("msp", "auto")
"""OOD scores that hydras are calibrated with."""
BATCHES = {1: 200, 16: 25, 64: 7}
"""Batch sizes that are timed, and of how many batches each."""
LONGER = {1: 40, 16: 6, 64: 2}
"""The same of a model whose passes take ten times as long."""
RUNS = 7
"""Rounds behind a median."""


def costs(hydra: Path, spec: str) -> MacsOf:
    """Multiply-adds of a fused hydra, for the first sample of a data set."""
    model = as_classifier(open_checkpoint(hydra), device="cpu", lean=True)
    batch = next(iter(Batches(open_data(spec), model.transform, batch_size=1, workers=0)))

    def steps(starters: tuple[int, ...]) -> StepMacs:
        return step_macs(model, batch.inputs, starters)

    return MacsOf(single_macs(model, batch.inputs), macs(model, batch.inputs), steps)


def fused(members: Sequence[Path], out: Path) -> Path:
    """With the MLPs of its members: it answers as they do."""
    if not out.exists():
        hs.fuse(members, out=out, mlp="separate", force=True)
    return out


def fashion(cache: Path, shared: Path, seed: int) -> tuple[Answers, Path]:
    answers = TASKS["fashion-mnist"].answers(cache / "fashion-mnist", shared, seed)["hydra"]
    name = NAMES[seed - 1]
    members = [cache / "fashion-mnist" / f"{name}-{i}-tuned.safetensors" for i in (1, 2, 3)]
    return answers, fused(members, cache / f"hydra-fashion-{seed}.safetensors")


def trunked(cache: Path, shared: Path, seed: int) -> tuple[Answers, Path]:
    """Half of the layers are the trunk; seeds draw and tune the members."""
    place = cache / "trunk"
    place.mkdir(parents=True, exist_ok=True)
    hydra = place / f"hydra-{trunk.LAYERS // 2}-{seed}-tuned.safetensors"
    if not hydra.exists():
        scored = place / "scored.safetensors"
        hs.score(scratch_vit("backbone"), method="taylor", data="demo:val", out=scored, force=True)
        trunk.hydra(scored, place, trunk.LAYERS // 2, seed, tuned=True)
    return of_hydra(hydra, image_sets(shared, large=False)), hydra


def of_hydra(hydra: Path, sources: dict[str, Source]) -> Answers:
    """What all members of a file say of every set, in a file beside it."""
    model = hs.load(hydra, device="cpu")
    place = hydra.with_suffix(".answers")
    tensors = load_file(place) if place.exists() else {}
    for name, source in {} if tensors else sources.items():
        samples = open_data(source.spec, limit=source.limit)
        if source.labelled:
            samples = fit_classes(samples, model.manifest.model)
        piece = collected(
            [model],
            Perturbed(samples) if source.perturbed else samples,
            Run(device="cpu", batch_size=32),
            features=True,
        )
        parts = {"logits": piece.logits, "features": piece.features, "labels": piece.labels}
        tensors |= {f"{name}.{part}": t.contiguous() for part, t in parts.items() if t is not None}
        print(hydra.stem, name, len(piece.logits), flush=True)
    if not place.exists():
        save_file(tensors, place)
    sets = {
        name: Outputs(
            tensors[f"{name}.logits"], tensors[f"{name}.features"], tensors.get(f"{name}.labels")
        )
        for name in sources
    }
    return Answers(sets, [(each.weight, each.bias) for each in classifiers(model)])


def minilm(cache: Path, shared: Path, seed: int) -> tuple[Answers, Path]:
    answers = TASKS["minilm"].answers(cache / "minilm", shared, seed)["hydra"]
    source, train = (
        cache / "minilm" / "tuned.safetensors",
        str(cache / "minilm" / "texts" / "train.jsonl"),
    )
    members = drawn(source, cache / "minilm", sample="18/36", seeds=range(1, 5), data=train)
    mine = [members[(seed - 1 + i) % len(members)] for i in range(3)]
    return answers, fused(mine, cache / f"hydra-minilm-{seed}.safetensors")


PIECES = {
    "fashion-mnist": ("fashion-mnist", fashion, "demo:test"),
    "trunk": ("fashion-mnist", trunked, "demo:test"),
    "minilm": ("minilm", minilm, "minilm/texts/test.jsonl"),
}
"""Task whose data sets are used, what makes the answers of a seed and its hydra, and data that costs are of."""


def mixed(
    state: State, cascade: Cascade, samples: Outputs, foreign: Sequence[Outputs]
) -> tuple[Sides, list[float]]:
    """The cascade's answers, and the shares that go on."""
    at = list(cascade.starters)
    first = [
        Outputs(o.logits[:, at], None if o.features is None else o.features[:, at], o.labels)
        for o in (samples, *foreign)
    ]
    early = sides(step_state(state, cascade, cascade.starters), first[0], first[1:])
    going = [in_steps(state, cascade, o.logits, o.features)[1] for o in (samples, *foreign)]
    whole = sides(state, samples, foreign)
    return early.mixed(whole, going), [float(each.double().mean()) for each in going]


def measured(
    fit: CascadeFit, answers: Answers, task: Any, wanted: CalibrateOptions
) -> dict[str, Any] | None:
    """One cascade: as it was fitted, and what it loses on test, near and far data; None where nothing costs so
    little."""
    state = fit.state
    try:
        record, _ = fit.record(wanted)
    except UsageError:
        return None
    cascade, test = record, answers.sets["test"]
    found: dict[str, Any] = {
        "first": list(cascade.starters),
        "gate": record.gate.model_dump(),
        "certified": record.certified,
        "share_val": record.shares[1],
        "expected_val": record.cost.expected,
        "drops_val": {name: drop.drop for name, drop in record.drops.items()},
    }
    for group, names in (("near", task.near), ("far", task.far)):
        foreign = [answers.sets[name] for name in names]
        part, shares = mixed(state, cascade, test, foreign)
        drops = drops_of(part, sides(state, test, foreign))
        found[group] = {"auroc": drops["auroc"], "fpr95": drops["fpr95"]}
        found |= {"accuracy": drops["accuracy"], "cov5": drops["cov5"], "share": shares[0]}
        found[f"share_{group}"] = shares[1:]
    labels = test.labels
    assert labels is not None
    parts, _ = in_steps(state, cascade, test.logits, test.features)
    probs = torch.cat([step_state(state, cascade, p.members).answers(p.logits) for p in parts])
    truth = torch.cat([labels[p.rows] for p in parts])
    full = state.answers(test.logits)
    found["nll"] = [
        float(-p.gather(1, t[:, None]).log().mean()) for p, t in ((probs, truth), (full, labels))
    ]
    found["expected"] = record.cost.first + found["share"] * record.cost.rest
    return found


def quality(name: str, cache: Path, shared: Path) -> dict[str, Any]:
    task_name, make, spec = PIECES[name]
    task = TASKS[task_name]
    results: dict[str, Any] = {
        "near": task.near,
        "far": task.far,
        "chooses": task.chooses,
        "models": [],
    }
    for seed in SEEDS:
        answers, hydra = make(cache, shared, seed)
        cost = costs(hydra, spec if spec.startswith("demo:") else str(cache / spec))
        for score in SCORES:
            foreign = [answers.sets["perturbed"], answers.sets[task.chooses]]
            state, _ = fit_state(
                answers.sets["val"],
                promise=CalibrateOptions.of("", data="", out=""),
                score=score,
                evidence=evidence(answers, seed),
                foreign=foreign,
                seed=seed,
            )
            fit = CascadeFit(state, answers.sets["val"], foreign, cost, seed=seed)
            asked = {
                "max_drop 0.5": CalibrateOptions.of(
                    "", data="", out="", cascade=True, max_drop=0.5
                ),
                **{
                    f"budget {b:g}": CalibrateOptions.of(
                        "", data="", out="", cascade=True, budget=b
                    )
                    for b in BUDGETS
                },
            }
            model: dict[str, Any] = {
                "seed": seed,
                "score": score,
                "kind": state.record.ood.score,
                "full": cost.full / cost.single,
                "members": [cost.steps((m,)).first / cost.single for m in range(3)],
                "cascades": {
                    key: measured(fit, answers, task, wanted) for key, wanted in asked.items()
                },
            }
            results["models"].append(model)
            for key in ("max_drop 0.5", "budget 1.2"):
                print(
                    name,
                    seed,
                    state.record.ood.score,
                    key,
                    json.dumps(model["cascades"][key]),
                    flush=True,
                )
    return results


def timing(cache: Path, shared: Path) -> dict[str, Any]:
    """The single model, a hydra, its cascade, and its cascade with every row open; seed 1 of each piece."""
    from hydrasurgeon.runtime.cascaded import Cascading, said

    results: dict[str, Any] = {"threads": torch.get_num_threads(), "models": {}}
    for name in PIECES:
        _, hydra = PIECES[name][1](cache, shared, 1)
        ready = cache / f"cascade-{name}.safetensors"
        texts = cache / "minilm" / "texts"
        val, foreign, test, source, counts = (
            (
                str(texts / "val.jsonl"),
                str(texts / "docstrings.jsonl"),
                str(texts / "test.jsonl"),
                cache / "minilm" / "tuned.safetensors",
                LONGER,
            )
            if name == "minilm"
            else ("demo:val", "demo:textures", "demo:test", scratch_vit("backbone"), BATCHES)
        )
        if not ready.exists():
            hs.calibrate(
                hydra,
                data=val,
                ood=[foreign],
                ood_score="msp",
                cascade=True,
                budget=1.2,
                limit=1000,
                out=ready,
                force=True,
            )
        single = as_classifier(open_checkpoint(source), device="cpu", lean=True)
        full, part, every = (as_classifier(open_checkpoint(ready), device="cpu") for _ in range(3))
        assert part.state is not None
        assert part.state.record.cascade is not None
        every.state = _with_gate(part.state, Gate(score=part.state.record.cascade.gate.score))
        opened = as_classifier(open_checkpoint(ready), device="cpu")
        opened.state = _with_gate(
            part.state, Gate(score=part.state.record.cascade.gate.score, low=-1e9)
        )
        models = {
            "single": single,
            "full": full,
            "cascade": Cascading(part),
            "no gate": Cascading(every),
            "all go on": Cascading(opened),
        }
        points = {}
        for size, count in counts.items():
            order = range(size * count)
            batches = [
                moved(b.inputs, torch.device("cpu"), torch.float32)
                for b in Batches(
                    open_data(test), part.transform, batch_size=size, order=order, workers=0
                )
            ]
            went = sum(len(p.rows) for b in batches for p in said(part, b) if len(p.members) > 1)
            points[str(size)] = {"share": went / (size * count), **_seconds(models, batches)}
            print(name, size, json.dumps(points[str(size)]), flush=True)
        results["models"][name] = points
    return results


def _with_gate(state: State, gate: Gate) -> State:
    assert state.record.cascade is not None
    cascade = state.record.cascade.model_copy(update={"gate": gate})
    return State(state.record.model_copy(update={"cascade": cascade}), state.fitted)


@torch.inference_mode()
def _seconds(models: dict[str, Any], batches: list[Any]) -> dict[str, Any]:
    """For each model the mean over the batches of the median over the rounds, in ms, and as multiples of the single
    model's."""
    import time

    taken: dict[str, list[list[float]]] = {name: [[] for _ in batches] for name in models}
    for run in range(RUNS + 1):
        for at, batch in enumerate(batches):
            for name, model in models.items():
                start = time.perf_counter()
                model(batch)
                if run:  # the first is the warm-up
                    taken[name][at].append(1000 * (time.perf_counter() - start))
    ms = {name: statistics.mean(map(statistics.median, each)) for name, each in taken.items()}
    return {"ms": ms, "of_single": {name: value / ms["single"] for name, value in ms.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--piece", action="append", choices=[*PIECES, "timing"])
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="data and models"
    )
    parser.add_argument("--cache", type=Path, help="what models said, kept from run to run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for piece in arguments.piece or [*PIECES, "timing"]:
            if not arguments.shared.is_dir():
                print(f"{piece}: left out, there is no {arguments.shared}", flush=True)
                continue
            cache = arguments.cache or Path(folder)
            found = (
                timing(cache, arguments.shared)
                if piece == "timing"
                else quality(piece, cache, arguments.shared)
            )
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results.setdefault("pieces", {})[piece] = {
                "machine": machine(),
                "torch": torch.__version__.partition("+")[0],
                **found,
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
