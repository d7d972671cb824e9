"""eval --assert: limits are read before any work, looked up in the report, and broken ones are named with their
values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hydrasurgeon.cli.app import run
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.asserts import parse_assertion, paths_of
from hydrasurgeon.measuring.measure import row_of
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.measuring.results import Cost, Report, Result
from hydrasurgeon.problems.base import Outputs

SPEC = Callable[..., str]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("id.ece<=0.02", (None, "id.ece", "<=", 0.02)),
        (" id.ece <= 2e-2 ", (None, "id.ece", "<=", 0.02)),
        ("members==3", (None, "members", "==", 3.0)),
        ("cost.macs<2e9", (None, "cost.macs", "<", 2e9)),
        ("ood.my.digits.auroc>.9", (None, "ood.my.digits.auroc", ">", 0.9)),
        (
            "shift.gaussian_noise:1.accuracy>=0.8",
            (None, "shift.gaussian_noise:1.accuracy", ">=", 0.8),
        ),
        ("hydra:id.ece<=0.02", ("hydra", "id.ece", "<=", 0.02)),
        ("a + b:ood_average.all.auroc>=-1", ("a + b", "ood_average.all.auroc", ">=", -1.0)),
        ("hf:me/model:shift.fog:5.accuracy>=0", ("hf:me/model", "shift.fog:5.accuracy", ">=", 0.0)),
        ("sets.CIFAR100.accuracy>0.5", (None, "sets.CIFAR100.accuracy", ">", 0.5)),
    ],
)
def test_grammar(text: str, parts: tuple[str | None, str, str, float]) -> None:
    found = parse_assertion(text)
    assert (found.result, found.path, found.operator, found.limit) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id.ece",
        "id.ece<=",
        "<=0.02",
        "id.ece=0.02",
        "id.ece!=0.02",
        "id.ece<=low",
        "id.ece<=inf",
        "0.02>=id.ece",
        "ece<=0.02",
        "hydra:ece<=0.02",
        "name==3",
        "id.<=3",
    ],
)
def test_what_is_no_assertion(text: str) -> None:
    with pytest.raises(UsageError, match="--assert") as refused:
        parse_assertion(text)
    assert "id.ece<=0.02" in str(refused.value.hint)


def measured(name: str, *, cost: bool = True) -> Result:
    logits = np.random.default_rng(0).normal(size=(20, 2, 3)).astype(np.float32)
    labels = np.arange(20) % 3
    said = Outputs(logits, None, labels)
    foreign = {"mnist": Outputs(logits[:7], None), "a.b": Outputs(logits[7:], None)}
    shifted = dict.fromkeys([("fog", 5), ("fog", 1), ("sketch", None)], said)
    about = Cost(params=7, macs=9) if cost else None
    made = Predictions(name, "hydra", said, foreign, ["a.b"], shifted, cost=about)
    return row_of(made, State.unfitted()).result


def test_every_number_has_a_path() -> None:
    one = measured("m")
    paths = paths_of(one)
    assert paths["id.ece"] == one.id.ece
    assert paths["ood.mnist.auroc"] == one.ood[0].auroc
    assert paths["ood.a.b.fpr95"] == one.ood[1].fpr95
    assert paths["ood_average.near.aupr"] == one.ood_average["near"].aupr
    assert paths["shift.fog:5.accuracy"] == one.shift[0].accuracy
    assert paths["shift.sketch.brier"] == one.shift[2].brier
    assert paths["cost.macs"] == 9
    assert paths["members"] == 2
    # members, id with five more, two OOD sets, three averages, three shifts and their averages, diversity, cost
    assert len(paths) == 1 + 11 + 2 * 5 + 3 * 4 + 3 * 3 + 3 + 2 * 3 + 2 + 2


def test_in_the_command(
    tiny: Callable[..., Path],
    images: SPEC,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny()
    images()
    monkeypatch.chdir(tmp_path)
    line = ["eval", "vit", "--data", "data.npz", "--ood", "near:other=data.npz", "--limit", "20"]
    good = ["--assert", "ood.other.auroc==0.5", "--assert", "vit:members==1"]
    assert run([*line, *good, "--predictions", "p.safetensors"]) == 0
    assert "all 2 assertions hold" in capsys.readouterr().out
    # The report is there for CI to keep, on stdout or in a file, and says which broke.
    assert run([*line, *good, "--assert", "id.accuracy>1", "--json", "-"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [a["holds"] for a in report["asserts"]] == [True, True, False]
    accuracy = report["results"][0]["id"]["accuracy"]
    assert report["asserts"][2] == {
        "assertion": "id.accuracy>1",
        "result": "vit",
        "value": accuracy,
        "holds": False,
    }
    assert "error: 1 of 3 assertions does not hold" in err
    assert f"vit: id.accuracy>1, but it is {accuracy:.6g}" in err
    again = ["eval", "--predictions-in", "p.safetensors", "--assert"]
    assert run([*again, "ood_average.all.auroc>0.6", "--json", "again.json", "--quiet"]) == 1
    assert "in distribution" in capsys.readouterr().out
    assert json.loads((tmp_path / "again.json").read_text())["asserts"][0]["value"] == 0.5
    assert run([*again, "id.accuracy>=0"]) == 0


def test_what_no_result_has_is_no_broken_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo, or a number of other kinds of models: what is there is offered, and nothing else."""
    logits = np.random.default_rng(0).normal(size=(20, 1, 3)).astype(np.float32)
    said = Outputs(logits, None, np.arange(20) % 3)
    write_predictions(Predictions("m", "hydra", said), tmp_path / "p.safetensors")
    line = ["eval", "--predictions-in", str(tmp_path / "p.safetensors"), "--json"]
    for number, path in enumerate(("id.risk", "id.rmse", "m:id.aecce", "ood.far.auroc")):
        report = tmp_path / f"{number}.json"
        assert run([*line, str(report), "--assert", f"{path}<=0.05"]) == 2
        name = path.removeprefix("m:")
        err = capsys.readouterr().err
        assert f"error: --assert {path}<=0.05: the report has no {name}" in err
        part = name.split(".")[0]
        there = paths_of(Report.model_validate_json(report.read_text()).results[0])
        alike = [path for path in there if path.startswith(f"{part}.")]
        offered = err.split("There are ")[1].strip().rstrip(".").split(", ")
        assert offered == (alike or [path for path, value in there.items() if value is not None])
        assert ("Did you mean id.aece?" in err) == (name == "id.aecce")
