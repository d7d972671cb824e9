"""Blends and cascades with a bag-of-words model as candidates of `build`, and the budget of `calibrate --words cascade`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_models import LABELS, probe_folder
from row_files import write_lines

import hydrasurgeon as hs
from hydrasurgeon.building import clock
from hydrasurgeon.building.clock import WORDS, Clock, Taken
from hydrasurgeon.building.work import Workshop
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import open_data
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.measuring import cost
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.options.shared import Run

SECONDS = {"torch": 2.0, "onnx": 1.0, WORDS: 0.05, "written": 0.05}
"""What engines, words, and words of a written file take."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on a random BERT, and its tables."""
    place = tmp_path_factory.mktemp("words")
    probe_folder(place)
    data, val = str(place / "train.csv"), str(place / "val.csv")
    hs.calibrate(place / "probe", data=val, fit_data=data, words="off", out=place / "off")
    return place


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What takes how long: no test depends on how fast a machine is."""
    seconds = dict(SECONDS)

    def live(self: Clock, opened: Any, **_: Any) -> dict[str, float]:
        return {name: seconds[name] for name in self.engines}

    def written(opened: Any, *, engine: str, device: str) -> float:
        record = opened.manifest.decision
        if record.cascade is None:
            return seconds[engine]
        return seconds["written"] + float(record.cascade.share_on) * seconds[engine]

    def seconds_of(models: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        return {name: each for name, (each,) in models.items()}

    monkeypatch.setattr(clock, "_engines", lambda: ("torch", "onnx"))
    monkeypatch.setattr(Clock, "_live", live)
    monkeypatch.setattr(clock, "_alone", lambda engine, reader: seconds[WORDS])
    monkeypatch.setattr(clock, "engine_of", written)
    monkeypatch.setattr(clock, "timed_samples", lambda *_, **__: [])
    monkeypatch.setattr(clock, "seconds_of", seconds_of)
    return seconds


def decided(path: Path) -> DecisionRecord:
    record = open_checkpoint(path).manifest.decision
    assert record is not None
    return record


def calibrated(place: Path, out: Path, **more: Any) -> Any:
    about = {"data": str(place / "val.csv"), "fit_data": str(place / "train.csv"), "device": "cpu"}
    return hs.calibrate(place / "probe", words="cascade", out=out, **about, **more)


@pytest.mark.slow
def test_a_budget_chooses_the_threshold(place: Path, tmp_path: Path) -> None:
    """Of samples that fit, (0.5 - 0.05) / 1.0 may go on; of all about as many."""
    done = calibrated(place, tmp_path / "cascade", budget="time=0.5", ood_score="msp")
    assert done.decision.words.mode == "cascade"
    assert done.decision.cascade.share_on == pytest.approx(0.45, abs=0.06)
    # Made again, it is the same whatever the clock says then.
    step = open_checkpoint(done.path).manifest.history[-1]
    assert step.args["budget"] == "on=0.450000"
    again = calibrated(place, tmp_path / "again", budget="on=0.45", ood_score="msp")
    assert again.path.read_bytes() == done.path.read_bytes()


@pytest.mark.slow
def test_a_budget_that_cannot_be_met_or_saves_nothing(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SurgeryError, match=r"bag-of-words model alone takes time=0\.05"):
        calibrated(place, tmp_path / "cascade", budget="time=0.04")
    with pytest.raises(UsageError, match="--budget requires --words cascade"):
        hs.calibrate(
            place / "probe", data=str(place / "val.csv"), budget="on=0.3", out=tmp_path / "x"
        )
    for wrong in ("time=0", "macs=0.5", "on=1.5", "time=nan"):
        with pytest.raises(UsageError, match="expected time=N above 0"):
            calibrated(place, tmp_path / "cascade", budget=wrong)
    done = calibrated(place, tmp_path / "blend", budget="time=3", ood_score="msp")
    assert (done.decision.words.mode, done.decision.cascade) == ("blend", None)
    assert any("--words cascade saves nothing" in note for note in done.notes)


def perturbed(place: Path, done: Any) -> tuple[list[Any], str]:
    """Return the perturbed rows, and what is told of those that stop at words, which is checked."""
    val = Perturbed(open_data(str(place / "val.csv")), 0)
    rows = [val.read(i) for i in range(len(val))]
    first, off = (hs.load(path, device="cpu").decide(rows) for path in (done.path, place / "off"))
    stops = np.asarray(first.members_run) == 0
    lost = 100 * (stops & np.asarray(off.unfamiliar)).mean()
    (note,) = [note for note in done.notes if "perturbed rows that the model calls" in note]
    assert note.startswith(f"the bag-of-words model answers {lost:.0f} % of the perturbed rows")
    return rows, note


@pytest.mark.slow
def test_invented_samples_take_nothing_from_a_budget(place: Path, tmp_path: Path) -> None:
    """What of perturbed texts stops at words is told; the same texts as OOD data must go on."""
    budget, given = "time=0.06", tmp_path / "ood.jsonl"
    rows, _ = perturbed(place, calibrated(place, tmp_path / "cascade", budget=budget))
    write_lines(given, ({"text": row} for row in rows))
    with pytest.raises(SurgeryError, match=r"of the rows must go on"):
        calibrated(place, tmp_path / "other", budget=budget, ood=[str(given)])


@pytest.mark.slow
def test_invented_samples_count_only_where_no_ood_is_given(place: Path, tmp_path: Path) -> None:
    """Words do not know those that are given: all of these go on, and nothing else has to."""
    (tmp_path / "ood.csv").write_text("\n".join(["text", *["[UNK] " * n for n in range(1, 61)]]))
    invented = calibrated(place, tmp_path / "invented", max_loss=9.0)
    assert invented.decision.cascade.share_on > 0.1
    ood = [str(tmp_path / "ood.csv")]
    given = calibrated(place, tmp_path / "given", max_loss=9.0, ood=ood)
    assert given.decision.cascade.share_on == 0
    assert given.decision.ood.score == decided(place / "off").ood.score
    assert perturbed(place, given)[1].endswith("a smaller --max-loss sends more rows to the model")
    careful = calibrated(place, tmp_path / "careful", max_loss=1e-6, ood=ood)
    assert careful.decision.cascade.share_on > 0


def front_of(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> Callable[..., Any]:
    """Builds fronts of what is quick."""

    def quick(workshop: Workshop, command: CommandLine) -> None:
        if command.stage == "score":
            raise KeyboardInterrupt
        perform(workshop, command)

    perform = Workshop.perform
    monkeypatch.setattr(Workshop, "perform", quick)
    tables = {"data": str(place / "train.csv"), "val": str(place / "val.csv"), "device": "cpu"}

    options = {"budget": budget, "cache": tmp_path / "work", **tables}
    return lambda out: hs.build(place / "probe", out=f"{tmp_path}/{out}", **options)


@pytest.mark.slow
def test_build_tries_words_at_their_time(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]
) -> None:
    """Nothing else is so fast; what was timed is believed by the next build, whatever runs then."""
    built = front_of(place, tmp_path, monkeypatch, "time=0.5,1.2")
    done = built("front/")
    record = json.loads((done.path / "front.json").read_text())
    first, whole = record["rungs"]
    assert decided(done.path / first["path"]).words.mode == "cascade"
    assert first["time"] <= 0.5 * 1.1
    share = decided(done.path / first["path"]).cascade.share_on
    assert first["time"] == pytest.approx(0.05 + share, abs=1e-9)
    rivals = {row["name"]: row for row in record["references"]}
    assert rivals["probe"]["time"] == 1
    assert whole["estimate"] >= rivals["probe"]["estimate"] - 1e-4
    seconds |= {"onnx": 10.0, "torch": 3.0, WORDS: 7.0}
    again = built("again/")
    assert (again.front, again.rows) == (done.front, done.rows)


@pytest.mark.slow
def test_numbers_too(place: Path, tmp_path: Path) -> None:
    """Which class a text is of, as a number, is what words know and a random model does not."""
    for name in ("train.csv", "val.csv"):
        table = (place / name).read_text()
        for number, label in enumerate(LABELS):
            table = table.replace(f",{label}\n", f",{number}\n")
        (tmp_path / name).write_text(table)
    probe, train, val = tmp_path / "probe", str(tmp_path / "train.csv"), str(tmp_path / "val.csv")
    number = {"task": "regression"}
    hs.finetune(place / "random", recipe="probe", data=train, set=number, out=probe)
    built = hs.build(probe, data=train, val=val, budget="macs=1", out=tmp_path / "best")
    assert built.front[0].name.endswith(", bag of words blended in")
    alone, best = hs.evaluate([probe, built.path], data=val).report.results
    assert built.rows[0].worth["rmse"] == pytest.approx(alone.id.rmse, abs=1e-6)
    assert built.front[0].worth["rmse"] == pytest.approx(best.id.rmse, rel=0.1)


@pytest.mark.slow
def test_a_file_that_takes_longer_than_its_parts_gives_way(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]
) -> None:
    """Fewer rows go on, so that the file itself keeps to the budget; no other is left."""
    seconds["written"] = 0.2
    done = front_of(place, tmp_path, monkeypatch, "time=0.5")("one.safetensors")
    record = decided(done.path)
    assert record.words.mode == "cascade"
    assert 0.2 < record.cascade.share_on <= 0.5 * 1.05 - 0.2
    assert done.front[0].cost["time"] == pytest.approx(0.2 + record.cascade.share_on)
    known = json.loads(json.loads((tmp_path / "work" / "build.json").read_text())["position"])
    # It is raised from 0.05 until the file, whose share of rows is not continuous, keeps to the budget.
    assert 0.1 < known["times"][WORDS][WORDS][1] <= 0.25
    assert [time for name, times in known["times"].items() if "rung" in name for time in times]


@pytest.mark.slow
def test_build_and_bench_measure_alike(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same texts, one by one, as often as they say: from text to decision."""
    monkeypatch.undo()
    monkeypatch.setattr(clock, "_engines", lambda: ("torch",))
    seen: list[list[Any]] = []
    answer = cost.answer

    def noted(engines: Any, batches: Any) -> None:
        seen.append(batches)
        answer(engines, batches)

    monkeypatch.setattr(cost, "answer", noted)
    file = calibrated(place, tmp_path / "cascade", budget="on=0.4", ood_score="msp").path
    val = str(place / "val.csv")
    hs.bench(file, data=val, batch="1", runs=1, device="cpu")
    benched = max(seen, key=len)
    timer = Clock(open_checkpoint(place / "probe"), open_data(val), Run(device="cpu"))
    timer.measured["file"] = {"onnx": Taken(1.0, 1.0)}  # kept by a build in another engine
    assert timer.written("file", file, "torch").time > 0
    assert {*timer.measured["file"]} == {"onnx", "torch"}
    assert seen.pop() == benched
    assert len(benched) == min(cost.IN_STAGES, len(open_data(val)))
    assert {len(batch) for batch in benched} == {1}
