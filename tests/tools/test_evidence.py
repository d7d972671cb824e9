"""docs/reference/evidence.md: what counts as held, and that the page is what the results say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("evidence")


@pytest.fixture
def claims(page: Any) -> Any:
    return importlib.import_module("claimed")


@pytest.fixture
def compared(page: Any) -> Any:
    return importlib.import_module("compared")


def cell(auroc: float, macs: float = 1.0, **more: float) -> dict[str, Any]:
    values = {
        "accuracy": 0.9,
        "nll": 0.3,
        "ece": 0.02,
        "auroc_near": auroc,
        "auroc_far": auroc,
        "auroc_mean": auroc,
        "fpr95_mean": 1 - auroc,
    } | more
    return {"macs": macs, "mi": 0.1, "plain": values, "calibrated": values}


def rows(*aurocs: float, **more: Any) -> dict[str, Any]:
    return {str(seed): cell(auroc, **more) for seed, auroc in enumerate(aurocs, 1)}


def test_gains_are_paired_by_seed(compared: Any) -> None:
    table = {"a": rows(0.8, 0.7, 0.9), "b": rows(0.7, 0.6, 0.9)}
    better = compared.gain(table, "a", "b", "auroc_mean")
    assert better.mean == pytest.approx(0.2 / 3)
    assert better.error == pytest.approx(0.1 / 3)  # sd 0.0577 of three
    assert better.clear
    lower = compared.gain(table, "a", "b", "fpr95_mean")
    assert lower.mean == pytest.approx(better.mean)
    assert not compared.gain(table, "b", "a", "auroc_mean").clear
    assert compared.gain(table, "a", "c", "auroc_mean") is None
    del table["b"]["1"]
    assert compared.gain(table, "a", "b", "auroc_mean").seeds == 2


def test_severe_shifts_are_claims_of_their_own(claims: Any) -> None:
    """Brier scores count the other way round."""
    kinds = {"shift_accuracy": 0.6, "shift_accuracy_4": 0.5, "shift_accuracy_5": 0.4, "shift_brier": 0.5}
    hydra = {str(seed): dict(kinds) for seed in (1, 2, 3)}
    ensemble = {
        seed: {"shift_accuracy": 0.65, "shift_accuracy_4": 0.4, "shift_accuracy_5": 0.3, "shift_brier": 0.4}
        for seed in hydra
    }
    shift = {"Hydra (Taylor), tuned": hydra, "Deep Ensemble": ensemble}
    lines = claims.claimed({"some": {"rows": {}, "shift": shift}}, None)
    verdicts = {line.split("|")[2].strip(): line.split("|")[3].strip() for line in lines if line.startswith("| E.1")}
    assert verdicts == {
        "Under corruptions (images: ImageNet-C's; texts: typos, dropped words) Hydra (Taylor) is more accurate than the single model": (
            "not measured yet"
        ),
        "… and within a point of a Deep Ensemble": "**not held**",
        "… and more accurate than a Deep Ensemble at severities 4 and 5": "**held**",
        "… with Brier scores within a point of a Deep Ensemble's": "**not held**",
    }


def test_a_task_of_fewer_seeds_says_nothing_of_a_claim(claims: Any) -> None:
    def task(ensemble: float, *aurocs: float) -> dict[str, Any]:
        return {"rows": {"Hydra (Circ), tuned": rows(*aurocs), "Deep Ensemble": rows(*(ensemble for _ in aurocs))}}

    def said(**tasks: Any) -> list[str]:
        (line,) = [
            line for line in claims.claimed(tasks, None) if "detects OOD data better than a Deep Ensemble" in line
        ]
        return [cell.strip() for cell in line.split("|")[3:5]]

    assert said(whole=task(0.8, 0.9, 0.9, 0.9), begun=task(0.8, 0.7, 0.7)) == [
        "**held**",
        "whole: auroc +10.0 ± 0.0, fpr95 +10.0 ± 0.0",
    ]
    assert said(begun=task(0.8, 0.9, 0.9)) == ["not measured yet", ""]
    mixed = said(a=task(0.8, 0.9, 0.9, 0.9), b=task(0.8, 0.7, 0.7, 0.7), c=task(0.8, 0.9, 0.9, 0.9))
    assert mixed[0] == "**not held** (only on a, c)"


def test_the_goal_takes_the_best_hydra_within_the_cost(page: Any) -> None:
    table = {
        "Single": rows(0.7, 0.7, 0.7),
        "Deep Ensemble": rows(0.8, 0.8, 0.8, macs=3.0),
        "Hydra (Circ), tuned": rows(0.9, 0.9, 0.9, macs=2.6),
        "Hydra (Taylor) behind a trunk, tuned": rows(0.81, 0.82, 0.8, macs=1.9),
        "built within 2x": rows(0.79, 0.79, 0.79, macs=1.5),
        "Single, same extra steps": rows(0.99, 0.99, 0.99),
    }
    best, count, others, single = page.target(table)
    assert count == 2
    assert best == "Hydra (Taylor) behind a trunk, tuned"
    assert others["auroc_mean"].mean == pytest.approx(0.01)
    assert single["accuracy"].mean == 0


def test_the_goal_by_the_chosen_score_names_its_own_best(page: Any, compared: Any) -> None:
    """Accuracy stays the calibrated one; a row without such a score in a seed counts nothing."""

    def told(cells: dict[str, Any], *aurocs: float) -> dict[str, Any]:
        for each, auroc in zip(cells.values(), aurocs, strict=True):
            each["chosen_score"] = {"kind": "knn", "auroc_mean": auroc, "fpr95_mean": 1 - auroc}
        return cells

    table = {
        "Single": told(rows(0.7, 0.7, 0.7, accuracy=0.8), 0.9, 0.9, 0.9),
        "Deep Ensemble": told(rows(0.8, 0.8, 0.8, macs=3.0), 0.9, 0.9, 0.9),
        "Hydra (Circ), tuned": told(rows(0.9, 0.9, 0.9, macs=1.6), 0.91, 0.9, 0.92),
        "built within 2x": told(rows(0.5, 0.5, 0.5), 0.95, 0.94, 0.96),
    }
    best, count, others, single = page.target(table, compared.CHOSEN)
    assert (best, count) == ("built within 2x", 2)
    assert others["fpr95_mean"].mean == pytest.approx(0.05)
    assert others["accuracy"].mean == 0
    assert single["accuracy"].mean == pytest.approx(0.1)
    del table["built within 2x"]["3"]["chosen_score"]
    assert page.target(table, compared.CHOSEN)[:2] == ("Hydra (Circ), tuned", 1)


def test_the_readme_shows_those_of_as_many_steps(page: Any) -> None:
    single, ensemble = rows(0.7, 0.7, 0.7, accuracy=0.8), rows(0.8, 0.8, 0.8, macs=3.0)
    hydra = rows(0.8, 0.9, 0.8, macs=1.94, nll=0.2)
    task = {
        "Single, tuned longer": single,
        "Hydra (Taylor) behind a trunk, tuned longer": hydra,
        "Deep Ensemble, tuned longer": ensemble,
    }
    lines = page.worth({"tasks": {"minilm": {"rows": task}}}).splitlines()
    assert lines[2:] == [
        "| single model | 1.0 | 0.800 / 0.300 / 0.700 |",
        "| what `build` makes of it, not tuned | – | – |",
        "| hydra of three behind a trunk, tuned | 1.9 | **0.900** / **0.200** / **0.833** |",
        "| Deep Ensemble of 3 | 3.0 | **0.900** / 0.300 / 0.800 |",
    ]


def test_the_page_is_what_the_results_say(page: Any, claims: Any) -> None:
    path = ROOT / "benchmarks" / "results" / "quality.json"
    results = json.loads(path.read_text())
    text = (ROOT / "docs" / "reference" / "evidence.md").read_text(encoding="utf-8")
    looked = json.loads((path.parent / "probe.json").read_text())
    assert text == page.evidence(results, looked), "run tools/render_docs.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    begin, end = page.WORTH
    assert readme.split(begin)[1].split(end)[0].strip() == page.worth(results), "run tools/render_docs.py"
    names = {
        name
        for task in results["tasks"].values()
        for kind in ("rows", "ablations", "shift")
        for name in task.get(kind, {})
    }
    assert names
    for claim in claims.CLAIMS:
        row = f"| {claim.where} | {claim.says} |"
        (line,) = [line for line in text.splitlines() if line.startswith(row)]
        verdict = line.split("|")[3].partition("(")[0].strip()
        assert verdict in ("**held**", "**not held**", "not measured yet")
        if not {claim.first, claim.second} <= names:
            assert verdict == "not measured yet"
