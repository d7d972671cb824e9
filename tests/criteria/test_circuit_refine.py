"""Swaps behind an order, an order from one backward pass, and how stable orders are: each against an obvious
version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_circuits import Slow, problem_of, slow_attribution, slow_chance, slow_swaps

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.cli.app import run
from hydrasurgeon.criteria.circuits.attribution import Attribution, predicted, predicted_order
from hydrasurgeon.criteria.circuits.effects import first_order
from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.greedy import extract
from hydrasurgeon.criteria.circuits.naive import measure, outcomes_of
from hydrasurgeon.criteria.circuits.stability import bootstrap, drawn, of_samples, on_samples
from hydrasurgeon.criteria.circuits.swaps import allowance, chance, refine
from hydrasurgeon.errors import ManifestError, SurgeryError, UsageError
from hydrasurgeon.files.manifest import Refined, Score, parse_manifest, read_manifest, sidecar
from hydrasurgeon.heads import Head, all_heads

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def data(images: SPEC) -> tuple[str, str]:
    return images(rows=20), images("ood.npz", rows=15, seed=5, labels=False)


def test_effects_are_slopes(tiny: MAKE, data: tuple[str, str]) -> None:
    """Against finite differences in float64, for heads that are there and heads that are gone."""
    problem = problem_of(tiny(), *data, dtype=torch.float64)
    gone = [Head("vision", 0, 1), Head("vision", 2, 3)]
    effects = first_order(problem, gone)
    ours, theirs = effects.present, outcomes_of(problem, gone)
    step = 1e-5
    for head in (gone[1], Head("vision", 1, 2)):
        moved = []
        for by in (step, -step):
            # The circuit itself is in the factors.
            factors = {
                (s.tower, s.layer): torch.tensor(
                    [float((s.tower, s.layer, h) not in gone) + by * (head == (s.tower, s.layer, h)) for h in s.heads],
                    dtype=torch.float64,
                )
                for s in problem.sites
            }
            with masked(problem.sites, factors):
                moved.append(outcomes_of(problem, ()))
        sign = 1 if head in gone else -1
        row = problem.candidates.index(head)
        for name in ("margin", "familiar", "foreign"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
            slope = (getattr(moved[0], name) - getattr(moved[1], name)) / (2 * step)
            torch.testing.assert_close(getattr(effects.change, name)[row].double(), sign * slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("objective", ["avg", *(pytest.param(o, marks=pytest.mark.slow) for o in ("acc", "ood"))])
def test_attribution_is_greedy_over_predicted_answers(tiny: MAKE, data: tuple[str, str], objective: Any) -> None:
    path = tiny()
    expected = slow_attribution(path, *data, objective, 8)
    problem = problem_of(path, *data, objective)
    circuit = extract(problem, Attribution, budget=8)
    assert list(circuit.order) == expected
    assert circuit.start == problem.objective.value(measure(problem, ()))
    for at, value in enumerate(circuit.trace, 1):
        assert value == problem.objective.value(measure(problem, expected[:at]))
    assert circuit.counts["evaluations"] == 8
    assert circuit.guarantee.startswith("none")


def test_predictions_do_not_depend_on_how_many_are_held(
    tiny: MAKE, data: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tiny(), *data)
    effects = first_order(problem)
    whole = predicted(problem.objective, effects, range(12))
    assert len(set(whole)) > 6
    monkeypatch.setattr("hydrasurgeon.criteria.circuits.attribution.ROWS", 200)
    assert predicted(problem.objective, effects, range(12)) == whole


@pytest.mark.parametrize(
    ("objective", "amount"), [pytest.param(o, n, marks=pytest.mark.slow) for o in ("acc", "ood", "avg") for n in (3, 6)]
)
def test_swaps_are_those_of_the_obvious_search(
    tiny: MAKE, data: tuple[str, str], objective: Any, amount: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a bad start, so that there is something to swap; each step better, the end measured by Algorithm 1's own
    pass."""
    monkeypatch.setattr("hydrasurgeon.criteria.circuits.swaps.SURE", 0.3)
    path = tiny()
    problem = problem_of(path, *data, objective)
    start = problem.candidates[:amount]
    most = allowance(12, amount)
    gone, swaps, unsure = slow_swaps(path, *data, objective, start, most, 0.3)
    assert swaps
    refined = refine(problem, start)
    assert (refined.removed, refined.unsure) == (gone, unsure)
    assert [(back, head) for back, head, _ in refined.swaps] == [(b, h) for b, h, _ in swaps]
    assert [value for *_, value in refined.swaps] == pytest.approx([v for *_, v in swaps], abs=1e-12)
    values = [refined.start, *(value for *_, value in refined.swaps)]
    assert values == sorted(set(values))
    assert refined.value == float(Slow(path, *data, objective).points(Slow(path, *data, objective).answers(gone)))
    assert refined.evaluations <= most
    assert len(set(gone)) == amount


@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_chance_is_the_standard_error_of_the_gain(tiny: MAKE, data: tuple[str, str], objective: Any) -> None:
    path = tiny()
    problem = problem_of(path, *data, objective)
    slow = Slow(path, *data, objective)
    sets = (problem.candidates[:4], problem.candidates[3:7])
    ours = chance(problem.objective, *(outcomes_of(problem, gone) for gone in sets))
    assert ours == pytest.approx(slow_chance(objective, *map(slow.answers, sets)), rel=1e-9)
    assert ours > 0.01
    assert chance(problem.objective, *[outcomes_of(problem, sets[0])] * 2) == 0


def test_a_gain_that_chance_explains_is_not_taken(
    tiny: MAKE, data: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(tiny(), *data)
    start = problem.candidates[:6]
    monkeypatch.setattr("hydrasurgeon.criteria.circuits.swaps.SURE", 1e9)
    refined = refine(problem, start)
    assert refined.removed == list(start)
    assert refined.value == refined.start
    assert refined.unsure > 0
    assert refined.record()["unsure"] == refined.unsure


@pytest.mark.parametrize("greedy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_never_below_the_start(tiny: MAKE, data: tuple[str, str], greedy: bool) -> None:
    problem = problem_of(tiny(), *data)
    start = problem.candidates[:4]
    if greedy:
        circuit = extract(problem, Exact, budget=6)
        assert circuit.trace[-1] == problem.objective.value(measure(problem, circuit.order))
        start = circuit.order
    refined = refine(problem, start)
    assert refined.start == problem.objective.value(measure(problem, start))
    assert refined.value == problem.objective.value(measure(problem, refined.removed))
    assert refined.value > refined.start or greedy
    assert refined.value >= refined.start
    again = refine(problem, start)
    assert (again.removed, again.record()) == (refined.removed, refined.record())


def scored(path: Path, data: tuple[str, str], *more: str) -> Score:
    line = ["score", str(path), "--method", "circuit", "--objective", "avg", "--data", data[0], "--ood", data[1]]
    assert run([*line, "--device", "cpu", "--quiet", *more]) == 0
    return read_manifest(sidecar(path)).scores["circuit-avg"]


def test_a_refined_set_is_for_its_amount(tiny: MAKE, data: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The order stays; prune takes the swapped set for exactly that many heads; the same bytes each time."""
    path, other = tiny(), tiny("other.safetensors")
    plain = scored(path, data, "--search", "attribution", "--remove", "6")
    before = sidecar(path).read_bytes()
    assert plain.refined is None
    assert b"refined" not in before
    score = scored(path, data, "--search", "attribution", "--remove", "6", "--refine", "swap")
    assert (score.order, score.trace) == (plain.order, plain.trace)
    assert score.refined is not None
    swaps = score.settings["refine"]["swaps"]
    assert swaps
    gone = list(score.order or ())[:6]
    for back, head, _ in swaps:
        gone = [*(entry for entry in gone if entry != tuple(back)), tuple(head)]
    assert score.refined == Refined(removed=tuple(gone), value=swaps[-1][2])
    assert score.refined.value > (score.trace or ())[-1]

    def kept(**amount: Any) -> set[Head]:
        member = hs.prune(path, method="circuit", force=True, **amount)
        return set(all_heads(member.manifest.kept))

    everything = {Head("vision", layer, head) for layer in range(3) for head in range(4)}
    assert kept(remove=6) == kept(keep=2) == everything - set(gone)
    assert kept(remove=5) == everything - set((score.order or ())[:5])
    order = [head for _, *head in score.order or () if head[0] in (1, 2)]
    late = kept(remove=2, layers="1-2")
    assert late == everything - {Head("vision", *head) for head in order[:2]}
    assert scored(other, data, "--search", "attribution", "--remove", "6", "--refine", "swap") == score
    capsys.readouterr()
    assert run(["inspect", str(path)]) == 0
    assert "circuit-avg (refined for 6 removals)" in capsys.readouterr().out
    assert (
        run(
            [
                "score",
                str(path),
                "--method",
                "circuit",
                "--data",
                data[0],
                "--ood",
                data[1],
                "--search",
                "attribution",
                "--remove",
                "6",
                "--refine",
                "swap",
            ]
        )
        == 0
    )
    assert f"{len(swaps)} swaps for exactly 6 removals" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        {"removed": [["vision", 0, 0], ["vision", 0, 0]]},
        {"removed": [["vision", 0, 9]]},
        {"removed": []},
        {"removed": [["vision", 0, 0]] * 13},
        {"value": float("nan")},
        {"value": "1"},
        {"more": 1},
    ],
)
def test_a_manifest_with_a_refined_set_that_is_none(tiny: MAKE, change: dict[str, Any]) -> None:
    raw = json.loads(sidecar(tiny()).read_text())
    order = [["vision", 0, 0], ["vision", 1, 0]]
    good = {
        "order": order,
        "trace": [0.5, 0.4],
        "refined": {"removed": [["vision", 2, 3]], "value": 0.6},
        "settings": {},
        "data": [],
    }
    raw["scores"] = {"circuit-avg": good}
    assert parse_manifest(json.dumps(raw), "here").scores["circuit-avg"].refined is not None
    raw["scores"] = {"circuit-avg": {**good, "refined": {**good["refined"], **change}}}  # type: ignore[dict-item]
    with pytest.raises(ManifestError):
        parse_manifest(json.dumps(raw), "here")


class Killed(Exception):
    pass


@pytest.mark.slow
def test_a_killed_refinement_starts_from_the_order(tiny: MAKE, data: tuple[str, str]) -> None:
    """What the search found is not searched again; what was swapped is."""
    options = {
        "method": "circuit",
        "data": data[0],
        "ood": [data[1]],
        "search": "attribution",
        "remove": 6,
        "refine": "swap",
    }
    whole, cut = tiny("whole.safetensors"), tiny("cut.safetensors")
    hs.score(whole, **options)
    removals = []

    def tick(what: str, done: int, total: int) -> None:
        removals.append("heads removed" in what)
        if what.startswith("1 swaps"):
            raise Killed

    with pytest.raises(Killed):
        hs.score(cut, progress=tick, **options)
    removals.clear()
    hs.score(cut, progress=lambda what, *_: removals.append("heads removed" in what), **options)
    assert not any(removals)
    assert read_manifest(sidecar(cut)).scores == read_manifest(sidecar(whole)).scores


def test_resamples_of_effects_are_effects_of_resamples(tiny: MAKE, data: tuple[str, str]) -> None:
    problem = problem_of(tiny(), *data)
    inside, outside = drawn(problem, 3, 1)
    assert len(set(inside.tolist())) < len(inside) == 20
    cached = of_samples(first_order(problem), inside, outside)
    anew = first_order(on_samples(problem, inside, outside))
    for name in ("margin", "familiar", "foreign"):
        torch.testing.assert_close(getattr(cached.change, name), getattr(anew.change, name), rtol=1e-4, atol=1e-5)
    assert torch.equal(drawn(problem, 3, 1)[0], inside)
    assert not torch.equal(drawn(problem, 4, 1)[0], inside)


@pytest.mark.parametrize("make", [Attribution, pytest.param(Exact, marks=pytest.mark.slow)])
def test_stability_is_what_the_searches_have_in_common(tiny: MAKE, data: tuple[str, str], make: Any) -> None:
    problem = problem_of(tiny(), *data)
    order = extract(problem, make, budget=7).order
    record = bootstrap(problem, make, order, 3, seed=2)
    kept = set(problem.candidates) - set(order)
    sets = []
    for number in range(3):
        resampled = on_samples(problem, *drawn(problem, 2, number))
        gone = (
            [problem.candidates[i] for i in predicted_order(problem.objective, first_order(resampled), 7)]
            if make is Attribution
            else extract(resampled, Exact, budget=7).order
        )
        sets.append(set(problem.candidates) - set(gone))
    shares = [len(each & kept) / 5 for each in sets]
    assert record["overlap"] == pytest.approx(sum(shares) / 3)
    assert record["least"] == min(shares)
    assert record["by_chance"] == 5 / 12
    assert record["kept"] == [[*head, sum(head in each for each in sets) / 3] for head in problem.candidates]
    assert (record["evaluations"] > 0) is (make is Exact)


def test_a_stability_is_recorded_and_shown(
    tiny: MAKE, data: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny()
    more = ("--search", "attribution", "--keep", "2", "--bootstrap", "4")
    record = scored(path, data, *more).settings["bootstrap"]
    assert (record["resamples"], record["amount"], record["by_chance"]) == (4, 6, 0.5)
    assert sum(share for *_, share in record["kept"]) == pytest.approx(6)
    assert scored(path, data, *more).settings["bootstrap"] == record
    assert scored(path, data, *more, "--seed", "5").settings["bootstrap"] != record
    capsys.readouterr()
    assert run(["score", str(path), "--method", "circuit", "--data", data[0], "--ood", data[1], *more]) == 0
    out = capsys.readouterr().out
    assert f"on 4 resamples {100 * record['overlap']:.0f} % of the kept heads are kept again" in out
    assert "share of resamples that keep a head, vision" in out


def test_what_a_circuit_alone_can_have(tiny: MAKE, data: tuple[str, str]) -> None:
    path = tiny()
    for options, said in (
        ({"method": "taylor", "refine": "swap", "keep": 2}, "--method taylor is no circuit"),
        ({"method": "circuit", "refine": "swap"}, "--refine swap: for how many heads"),
        ({"method": "circuit", "bootstrap": 5}, "--bootstrap 5: for how many heads"),
        ({"method": "circuit", "refine": "swaps", "keep": 2}, "no such refinement"),
        ({"method": "circuit", "bootstrap": 1, "keep": 2}, "2 to 10,000"),
    ):
        with pytest.raises(UsageError, match=said):
            hs.score(path, data=data[0], ood=[data[1]], **options)


def test_heads_that_samples_do_not_run_through(tiny: MAKE, data: tuple[str, str]) -> None:
    problem = problem_of(tiny(), *data)
    other = replace(problem, candidates=(*problem.candidates, Head("text", 0, 0)))
    with pytest.raises(SurgeryError, match=r"--search attribution: samples do not run through tower text"):
        Attribution(other)
    with pytest.raises(SurgeryError, match=r"--refine swap") as caught:
        refine(other, problem.candidates[:2])
    assert "--tower vision" in str(caught.value.hint)
