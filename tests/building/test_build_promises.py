"""build --risk and --coverage: what chooses does not certify, and what cannot be promised is said and loses no file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_answers import member
from own_models import embedder_folder, texts
from promised import promise

import hydrasurgeon as hs
from hydrasurgeon.building.answers import MemberOutputs
from hydrasurgeon.building.choosing import decide
from hydrasurgeon.building.table import BuildObjective, Candidate, CandidateTable
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.data.samples import Samples, part_of
from hydrasurgeon.decision.fitting import fit_state
from hydrasurgeon.decision.ood_score import Grounds
from hydrasurgeon.decision.state import decide as answer
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.measuring import known
from hydrasurgeon.tasks.base import Outputs

DRAWS, ROWS, FRESH, RISK, MODELS, CLASSES = 300, 300, 20_000, 0.1, 8, 4


class World:
    """Models that are about equally good, and differ in part of what they get wrong."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.signals = 2.1 * (1 + 0.03 * random.normal(size=MODELS))
        self.fresh = self.draw(FRESH, random)

    def draw(self, rows: int, random: np.random.Generator) -> list[Outputs]:
        labels = random.integers(0, CLASSES, rows)
        shared = random.normal(size=(rows, CLASSES))
        found = []
        for signal in self.signals:
            noise = 0.8 * shared + 0.6 * random.normal(size=(rows, CLASSES))
            logits = signal * (signal * np.eye(CLASSES)[labels] + noise)
            found.append(Outputs(logits[:, None].astype(np.float32), None, labels))
        return found


@pytest.mark.slow
def test_a_promise_holds_after_a_choice() -> None:
    """A third of VAL chooses among eight models and fits, the others certify: broken in at most 5 % of the draws."""
    world, random, broken, answered = World(), np.random.default_rng(1), 0, []
    members = [member(at) for at in range(MODELS)]
    chooses = ROWS * 33 // 100
    for _ in range(DRAWS):
        outputs = world.draw(ROWS, random)
        choosing = [each.at(slice(chooses)) for each in outputs]
        table = CandidateTable(
            BuildObjective("nll"),
            lambda each, engine, sets=choosing: MemberOutputs((sets[members.index(each)],)),
            lambda choice, on: {"macs": 1.0},
        )
        best = decide([table.entry(Candidate.of(each)) for each in members], "macs")
        at = members.index(best.choice.members[0])
        val = replace(outputs[at], certifies=np.arange(ROWS) >= chooses)
        try:
            state, _ = fit_state(val, promise(risk=RISK, ood_score="msp"), Grounds())
        except DataError:
            answered.append(0.0)
            continue
        said, truth = answer(state, world.fresh[at].logits, None), world.fresh[at].truth
        given = ~said.abstain & ~said.unfamiliar
        answered.append(float(given.mean()))
        broken += (said.probabilities.argmax(axis=-1) != truth)[given].mean() > RISK
    assert broken <= 24  # of 300 at 5 %: more have a probability of 1 %
    assert np.mean(answered) > 0.25


@pytest.mark.parametrize("limit", [None, 50])
def test_two_parts_are_all_rows(limit: int | None, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"text {at % 70}", "label": at % 3}) for at in range(100)]
    (tmp_path / "d.jsonl").write_text("\n".join(rows))
    spec = f"{tmp_path}/d.jsonl"
    whole = open_data(spec, limit=limit)
    first, rest = (open_data(f"{spec}#part,{each}", limit=limit) for each in ("0-33", "33-100"))
    assert len(first) == len(whole) * 33 // 100

    def rows_of(samples: Samples) -> list[tuple[Any, Any]]:
        assert samples.labels is not None
        return [(samples.read(at), samples.labels[at]) for at in range(len(samples))]

    assert sorted([*rows_of(first), *rows_of(rest)]) == sorted(rows_of(whole))
    assert rows_of(part_of(whole, "0-33")) == rows_of(first)
    for wrong in ("33", "50-20", "0-101", "a-b"):
        with pytest.raises(UsageError, match="is not a part of a data set"):
            open_data(f"{spec}#part,{wrong}")


class Place:
    """An embedder and tables, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        texts(folder)
        embedder_folder(folder)

    def line(self, *more: str, val: str = "val.csv") -> list[str]:
        files = ["--data", "train.csv", "--val", val, "--device", "cpu", "--seeds", "1"]
        return ["build", "embedder", *files, *more]

    def decision(self, name: str) -> DecisionRecord:
        found = open_checkpoint(self.folder / name).manifest.decision
        assert found is not None
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("promises"))


@pytest.fixture
def here(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(place.folder)
    return place


@pytest.mark.slow
def test_what_is_built_abstains(here: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """With --risk and --coverage, by rows that chose nothing; the same command made again is done."""
    assert run(here.line("--risk", "0.2", "--coverage", "0.8", "-o", "chosen")) == 0
    said = capsys.readouterr()
    decision = here.decision("chosen")
    assert decision.abstain is not None
    assert (decision.abstain.risk, decision.conformal.coverage) == (0.2, 0.8)
    assert (decision.fitted, decision.certified) == (198, 402)
    printed = " ".join(said.out.split())
    assert "promised with 95 % confidence: at most 20 % of its answers are wrong" in printed
    answered = f"{100 * decision.abstain.coverage:.1f} %"
    assert f"it answered {answered} of the 402 rows that certify this" in printed
    assert "--risk 0.05" not in said.out
    assert "600 validation rows: 198 choose, promises are certified on 402" in said.err
    assert "chosen by VAL" not in said.err
    # What certified has chosen no epoch, no penalty and no weight.
    history = open_checkpoint("chosen").manifest.history
    certifying = open_data("val.csv#part,33-100")
    assert known.certifying(certifying, history) == (certifying, [])
    (note,) = known.certifying(open_data("val.csv#part,0-33"), history)[1]
    assert "all of its 198 rows" in note
    (seen,) = hs.evaluate("chosen", data="test.csv", device="cpu").report.results
    assert seen.id.wrong is not None
    assert seen.id.wrong <= 0.2
    assert run(["inspect", "chosen", "--commands"]) == 0
    assert "--certify 'val.csv#part,33-100'" in capsys.readouterr().out


@pytest.mark.slow
def test_what_cannot_be_promised_is_said_and_loses_nothing(
    here: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, with the file that would have been written anyway; and again where the file is there."""
    line = here.line("--risk", "0.03", "--budget", "macs=1,1.2", "-o", "front/")
    for more in ([], ["--force"]):
        assert run([*line, *more]) == 1
        said = capsys.readouterr()
        assert "it never abstains, because --risk 0.03 cannot be promised" in said.out
        assert "note: macs=1: written without --risk 0.03: 600 rows cannot promise it" in said.err
        assert "error: --risk: not promised by macs=1, macs=1.2" in said.err
        assert "the smallest risk that can be promised" in said.err or "no risk can" in said.err
        decision = here.decision("front/macs-1")
        assert decision.abstain is None
        assert decision.certified == 402
    result = hs.build(
        "embedder",
        data="train.csv",
        val="val.csv",
        risk=0.03,
        seeds=1,
        budget="macs=1,1.2",
        out="front/",
        force=True,
        device="cpu",
    )
    assert {*result.unpromised} == {"macs=1", "macs=1.2"}


def fewer(rows: int) -> Callable[[Place], str]:
    def written(place: Place) -> str:
        lines = (place.folder / "val.csv").read_text().splitlines()[: rows + 1]
        (place.folder / f"few-{rows}.csv").write_text("\n".join(lines))
        return f"few-{rows}.csv"

    return written


@pytest.mark.parametrize(
    ("rows", "more", "says"),
    [
        (60, ["--risk", "0.2"], "has 60 rows; at least 61 are needed 20 of 61 choose"),
        (55, ["--coverage", "0.8"], "has 55 rows; at least 61 are needed 20 of 61 choose"),
        (19, [], "has 19 rows; at least 20 are needed"),
        (90, ["--risk", "0.01"], "can be promised, if no answer is wrong"),
    ],
)
def test_too_few_rows_are_refused_before_any_work(
    rows: int, more: list[str], says: str, here: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(here.line(*more, "-o", "few", val=fewer(rows)(here))) == 5
    assert says in " ".join(capsys.readouterr().err.split())
    assert not Path("few.build").exists()


def test_numbers_have_no_risk(here: Place, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"a film {at}", "label": at / 7}) for at in range(150)]
    (tmp_path / "n.jsonl").write_text("\n".join(rows[:75]))
    (tmp_path / "v.jsonl").write_text("\n".join(rows[75:]))
    about: dict[str, Any] = {"set": {"task": "regression"}, "device": "cpu"}
    model = hs.finetune(
        "embedder", recipe="probe", data=f"{tmp_path}/n.jsonl", out=tmp_path / "m", **about
    )
    with pytest.raises(UsageError, match="--risk"):
        hs.build(
            model.path,
            data=f"{tmp_path}/n.jsonl",
            val=f"{tmp_path}/v.jsonl",
            risk=0.1,
            out=tmp_path / "x",
        )
