"""What decision states are worth: every OOD score on single models and hydras, and whether promises are kept.

The three independently trained models of the demo, and of each a hydra of three members (12 of the first 30 heads by taylor
removed, drawn by three seeds, not tuned). Scores are fitted on the training data, temperature and choices on validation data; all
figures are of test data, near, digits and textures. `auto` chooses by perturbed validation data. Promises are tried over random
splits of validation and test data together: one half calibrates, the other counts. Writes benchmarks/results/decision.json.

    python benchmarks/decision.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from surgery import machine

import hydrasurgeon as hs
from hydrasurgeon.data import fit_classes, open_data
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.decision.abstain import fit_abstention
from hydrasurgeon.decision.conformal import METHODS, fit_conformal, fit_penalty
from hydrasurgeon.decision.fitting import Outputs, Promise, fit_state
from hydrasurgeon.decision.probabilities import mean_probs, nll
from hydrasurgeon.decision.scores.evidence import Evidence, Gathering
from hydrasurgeon.decision.scores.fitted import FITTED, fit, scores_of
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring.metrics import auroc, ece
from hydrasurgeon.run import Run
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.features import classifiers
from hydrasurgeon.runtime.outputs import collected

RESULTS = Path(__file__).parent / "results" / "decision.json"
DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
MODELS = ("backbone", "independent-2", "independent-3")
SETS = ("near", "digits", "textures")
SPLITS = {"conformal": 100, "risk": 200}
RISK, DELTA = 0.05, 0.05


def hydra(source: Path, folder: Path) -> Path:
    """Three members that nobody tuned."""
    copy = folder / f"{source.name}"
    hs.score(source, method="taylor", data="demo:val", out=copy, force=True)
    members = [
        hs.prune(copy, method="taylor", sample="12/30", seed=seed, out=folder / f"{source.stem}-{seed}.safetensors").path
        for seed in (1, 2, 3)
    ]  # fmt: skip
    return hs.fuse(members, out=folder / f"{source.stem}-hydra.safetensors").path


def outputs(model: Classifier, spec: str, *, labelled: bool = True, perturbed: bool = False) -> Outputs:  # fmt: skip
    samples = open_data(spec)
    if labelled:
        about = model.manifest.model
        samples = fit_classes(samples, num_classes=about.num_classes, labels=about.labels)
    if perturbed:
        samples = Perturbed(samples)
    piece = collected(model, samples, Run(device="cpu"), features=True)
    return Outputs(piece.logits, piece.features, piece.labels)


def evidence(model: Classifier, train: Outputs) -> list[Evidence]:
    assert train.features is not None
    assert train.labels is not None
    found = []
    for m, linear in enumerate(classifiers(model)):
        gathering = Gathering(linear.weight, linear.bias)
        gathering.add(train.features[:, m], train.logits[:, m], train.labels)
        found.append(gathering.evidence())
    return found


def measured(path: Path) -> dict[str, Any]:
    model = hs.load(path, device="cpu")
    train, val, test = (outputs(model, f"demo:{name}") for name in ("train", "val", "test"))
    foreign = {name: outputs(model, f"demo:{name}", labelled=False) for name in SETS}
    fits = evidence(model, train)
    assert val.features is not None
    found: dict[str, dict[str, float]] = {}
    for kind in (*ON_LOGITS, *FITTED):
        if kind == "mcm":
            continue
        fitted = fit(kind, fits, (val.features, val.logits)) if kind in FITTED else None
        inside = scores_of(kind, test.logits, test.features, fitted)
        found[kind] = {
            name: auroc(inside, scores_of(kind, out.logits, out.features, fitted)) or 0.0
            for name, out in foreign.items()
        }
        found[kind]["mean"] = statistics.mean(found[kind].values())
    chosen = {}
    spoiled = outputs(model, "demo:val", perturbed=True)
    for by, seen in (("perturbed", spoiled), ("textures", foreign["textures"])):
        state = fit_state(val, promise=Promise(), evidence=fits, foreign=[seen]).state
        chosen[by] = state.ood.kind
    calibration = fit_state(val, promise=Promise(), score="msp").state
    before, after = mean_probs(test.logits), calibration.probs(test.logits)
    assert test.labels is not None
    return {
        "auroc": found,
        "auto": chosen,
        "joint": calibration.joint is not None,
        "nll": [nll(before, test.labels), nll(after, test.labels)],
        "ece": [ece(before, test.labels), ece(after, test.labels)],
        "promises": promises(val, test),
    }


def promises(val: Outputs, test: Outputs) -> dict[str, Any]:
    """Coverage of the sets, and how often the promised risk is broken, over random splits."""
    assert val.labels is not None
    assert test.labels is not None
    probs = mean_probs(torch.cat([val.logits, test.logits]))
    labels = torch.cat([val.labels, test.labels])
    random = torch.Generator().manual_seed(0)
    covered: dict[str, list[float]] = {method: [] for method in METHODS}
    sizes: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(SPLITS["conformal"]):
        order = torch.randperm(len(labels), generator=random)
        tuned, fitted, tried = order[:500], order[500 : len(order) // 2], order[len(order) // 2 :]
        for method in METHODS:
            penalty = fit_penalty(probs[tuned], labels[tuned]) if method == "raps" else None
            conformal = fit_conformal(probs[fitted], labels[fitted], method=method, penalty=penalty)
            sets = conformal.sets(probs[tried])
            covered[method].append(float(sets.gather(1, labels[tried][:, None]).double().mean()))
            sizes[method].append(float(sets.sum(dim=-1).double().mean()))
    broken, refused, answered = 0, 0, []
    sure, label = probs.max(dim=-1)
    right = label == labels
    for _ in range(SPLITS["risk"]):
        order = torch.randperm(len(labels), generator=random)
        fitted, tried = order[: len(order) // 2], order[len(order) // 2 :]
        try:
            rule = fit_abstention(sure[fitted], right[fitted], risk=RISK, delta=DELTA)
        except DataError:
            refused += 1
            continue
        kept = sure[tried] >= rule.threshold
        answered.append(float(kept.double().mean()))
        broken += float((~right[tried][kept]).double().mean()) > RISK
    return {
        "coverage": {method: statistics.mean(values) for method, values in covered.items()},
        "size": {method: statistics.mean(values) for method, values in sizes.items()},
        "risk": {"splits": SPLITS["risk"], "broken": broken, "refused": refused, "answered": statistics.mean(answered) if answered else None},
    }  # fmt: skip


def large() -> dict[str, float]:
    """Fitting for 1,000 classes from 50,000 features of width 768, and what a member then stores."""
    classes, width, count = 1000, 768, 50_000
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, width, generator=random)
    gathering = Gathering(weight, torch.zeros(classes))
    seconds, held = 0.0, (torch.zeros(0), torch.zeros(0))
    for start in range(0, count, 64):
        labels = torch.arange(start, min(start + 64, count)) % classes
        features = torch.randn(len(labels), width, generator=random) + weight[labels]
        logits = features @ weight.T
        begun = time.perf_counter()
        gathering.add(features, logits, labels)
        seconds += time.perf_counter() - begun
        held = features[:, None], logits[:, None]
    begun = time.perf_counter()
    gathered = gathering.evidence()
    fitted = {kind: fit(kind, [gathered], held) for kind in ("mds", "rmds", "maha++", "vim", "nci")}
    seconds += time.perf_counter() - begun
    stored = {kind: sum(t.numel() * 4 for t in each.states[0].values()) for kind, each in fitted.items()}  # fmt: skip
    return {"seconds": seconds, "threads": torch.get_num_threads(), **{f"bytes {kind}": n for kind, n in stored.items()}}  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    models: dict[str, dict[str, Any]] = {"single": {}, "hydra": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            source = DEMO / f"{name}.safetensors"
            models["single"][name] = measured(source)
            models["hydra"][name] = measured(hydra(source, Path(folder)))
            print(name, {kind: {k: round(v["mean"], 4) for k, v in models[kind][name]["auroc"].items()} for kind in models}, flush=True)  # fmt: skip
    results = {"machine": machine(), "torch": torch.__version__, "models": models, "large": large()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
