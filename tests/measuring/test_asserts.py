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
from hydrasurgeon.measuring.asserts import Bound, parse_assertion, paths_of, with_bounds
from hydrasurgeon.measuring.measure import row_of
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.measuring.results import Cost, Report, Result
from hydrasurgeon.tasks.base import Outputs

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


NAMES = ("base", "base-0.01", "a + b", "hf:me/model", "next")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("next:id.accuracy>=base", Bound("base", "id.accuracy")),
        ("next:id.accuracy >= base - 0.02", Bound("base", "id.accuracy", -0.02)),
        ("id.nll<=base+1e-2", Bound("base", "id.nll", 0.01)),
        ("id.nll<=base-0.01", Bound("base-0.01", "id.nll")),  # a name, where there is such a one
        ("id.nll<=a + b+0.1", Bound("a + b", "id.nll", 0.1)),
        ("id.nll<hf:me/model:id.ece-.5", Bound("hf:me/model", "id.ece", -0.5)),
        ("cost.macs<next:ood.a-1.auroc+2", Bound("next", "ood.a-1.auroc", 2.0)),
    ],
)
def test_a_limit_that_another_result_gives(text: str, bound: Bound) -> None:
    (found,) = with_bounds([parse_assertion(text)], NAMES)
    assert found.limit == bound


@pytest.mark.parametrize(
    "limit", ["low", "base*2", "base-", "base:name", "base-0.01-0.02-x", "bas"]
)
def test_what_is_neither_a_number_nor_a_result(limit: str) -> None:
    with pytest.raises(UsageError, match="is neither a number nor a result"):
        with_bounds([parse_assertion(f"id.ece<={limit}")], NAMES)


def test_relative_limits_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 100 rows `base` has 80 right and `next` 79, on the same rows but one."""
    monkeypatch.chdir(tmp_path)
    labels = np.arange(100) % 4
    for name, right in (("base", 80), ("next", 79)):
        answers = np.where(np.arange(100) < right, labels, (labels + 1 + np.arange(100) % 3) % 4)
        logits = (3 * np.eye(4)[answers]).astype(np.float32)
        said = Outputs(logits[:, None], None, labels)
        write_predictions(Predictions(name, "member", said), tmp_path / f"{name}.safetensors")
    line = ["eval", "--predictions-in", "base.safetensors", "--predictions-in", "next.safetensors"]
    assert run([*line, "--quiet", "--assert", "next:id.accuracy>=base-0.011"]) == 0
    report = ["--json", "report.json"]
    assert run([*line, *report, "--quiet", "--assert", "next:id.accuracy>=base-0.009"]) == 1
    said = "next:id.accuracy>=base-0.009, but it is 0.79 and the limit 0.791"
    assert said in capsys.readouterr().err
    (record,) = json.loads((tmp_path / "report.json").read_text())["asserts"]
    assert record == {
        "assertion": "next:id.accuracy>=base-0.009",
        "result": "next",
        "value": 0.79,
        "limit": pytest.approx(0.791),
        "holds": False,
    }
    # The interval of the paired difference says whether it is chance; by hand: 1 of 100 rows.
    paired = ["--ci", "0.95", "--force", *report]
    low = "next:differences.accuracy.low>=-0.031"
    assert run([*line, *paired, "--assert", low, "--assert", "differences.accuracy.high<=0"]) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    assert [each["result"] for each in found["asserts"]] == ["next", "next"]
    (accuracy,) = (each for each in found["differences"] if each["metric"] == "accuracy")
    assert (accuracy["name"], accuracy["reference"]) == ("next", "base")
    assert accuracy["difference"] == pytest.approx(-0.01)
    # Of resamples of 100 rows the one that differs is drawn 0 to 3 times in 95 %.
    assert (accuracy["low"], accuracy["high"]) == (pytest.approx(-0.03), 0)
    assert run([*line, "--assert", low]) == 2
    assert "differences are measured with --ci" in capsys.readouterr().err
    assert run([*line, *paired, "--reference", "next"]) == 0
    turned = json.loads((tmp_path / "report.json").read_text())["differences"]
    assert {(each["name"], each["reference"]) for each in turned} == {("base", "next")}
    by_metric = {each["metric"]: each["difference"] for each in turned}
    for each in found["differences"]:
        assert by_metric[each["metric"]] == pytest.approx(-each["difference"])
    assert run([*line, "--force", *report]) == 0
    assert "differences" not in json.loads((tmp_path / "report.json").read_text())


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
    assert len(paths) == 1 + 11 + 2 * 7 + 3 * 6 + 3 * 3 + 3 + 2 * 3 + 2 + 2


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
