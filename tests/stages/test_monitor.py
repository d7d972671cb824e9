"""monitor: answers of data like the calibration's do not drift, others do; states without counts; every night; bad input."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from edited import edited
from row_files import write_lines
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.render.described import monitored
from hydrasurgeon.stages.monitor import monitor

VIT = FAMILIES["timm ViT"]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated checkpoint, its answers on its own data, and on noise."""
    folder = tmp_path_factory.mktemp("ready")
    VIT.write(folder / "source")
    data = VIT.data(folder, rows=200)
    hs.calibrate(
        folder / "source",
        data=data,
        ood_score="mds",
        coverage=0.6,
        risk=0.9,
        out=folder / "c.safetensors",
    )
    pixels = np.load(data)["images"]
    np.savez(
        folder / "noise.npz",
        images=np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8),
    )
    for name, spec in (("same", data), ("noise", str(folder / "noise.npz"))):
        hs.predict(folder / "c", data=spec, out=folder / f"{name}.jsonl", device="cpu")
    return folder


def test_exit_codes_and_what_is_said(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state lies beside the answers; an alarm stands; asked again it says the same."""
    for name in ("same", "noise"):
        shutil.copy(ready / f"{name}.jsonl", tmp_path)
    against = ["--against", str(ready / "c.safetensors")]
    assert run(["monitor", str(tmp_path / "same.jsonl"), *against]) == 0
    assert "no drift (" in capsys.readouterr().out
    state = tmp_path / "same.jsonl.state.json"
    before = state.read_bytes()
    assert run(["monitor", str(tmp_path / "same.jsonl"), *against]) == 0
    assert "no answer is new: the table shows those of look 1" in capsys.readouterr().err
    assert state.read_bytes() == before
    command = ["monitor", str(tmp_path / "noise.jsonl"), *against, "--state", str(state)]
    for _ in range(2):
        assert run([*command, "--json"]) == 1
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert result["drifted"]
        assert result["looks"] == 2
        assert result["answers"]["rows"] == 200
        assert [*result["answers"]["predicted"]] == ["0", "1", "2"]
        assert sum(result["answers"]["predicted"].values()) == 200
        assert [test["name"] for test in result["tests"]] == ["unfamiliar", "classes"]
        first, second = result["tests"][0]["log10_e"]
        assert second > result["bar"] > first
        assert err.startswith(
            "error: c.safetensors: the answers drifted: in noise.jsonl, look 2 of 2, "
        )


def test_rows_that_could_not_be_read_are_not_compared(ready: Path, tmp_path: Path) -> None:
    lines = (ready / "same.jsonl").read_text().splitlines()
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines, '{"id": "x", "error": "x: not a readable image"}'])
    )
    result = monitor(tmp_path / "a.jsonl", against=ready / "c")
    assert result.drift.answers.rows == 200
    assert result.notes == (
        "1 rows could not be read when they were answered, and are not compared",
    )


def test_a_state_of_an_older_version_is_compared_by_what_it_has(
    ready: Path, tmp_path: Path
) -> None:
    decision = json.loads((ready / "c.heads.json").read_text())["decision"]
    del decision["seen"]
    edited(
        ready / "c.safetensors",
        tmp_path / "old.safetensors",
        lambda name, tensor: tensor,
        decision=decision,
    )
    result = monitor(ready / "noise.jsonl", against=tmp_path / "old", state=tmp_path / "s.json")
    assert [test.name for test in result.drift.tests] == ["unfamiliar"]
    assert result.drift.drifted
    assert "does not say which classes" in result.notes[0]
    assert result.drift.validation is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no answers"),
        ("{\n", "line 1: is not JSON"),
        (
            '{"id": 1, "label": 0, "total": 0.1, "unfamiliar": null}\n',
            "line 1: unfamiliar cannot be 'None'",
        ),
        ('{"id": 1, "label": 0, "unfamiliar": false}\n', "line 1: total is missing"),
        (
            '{"label": 0, "total": "much", "unfamiliar": false}\n',
            "line 1: total cannot be 'much'",
        ),
        (
            '{"id": 1, "label": "cat", "total": 0.1, "unfamiliar": false}\n',
            "line 1: cat is not a class of the checkpoint",
        ),
        (
            '{"label": 0, "total": -5.0, "unfamiliar": false, "answer": "abstain"}\n',
            "line 1: a total uncertainty of -5",
        ),
        (
            '{"label": 0, "total": 1e308, "unfamiliar": false}\n' * 3,
            "line 1: a total uncertainty of 1e+308",
        ),
        ("3\n", "line 1: is not an answer of a calibrated checkpoint"),
    ],
)
def test_what_is_no_file_of_answers(
    content: str, says: str, ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    assert run(["monitor", str(tmp_path / "a.jsonl"), "--against", str(ready / "c")]) == 5
    assert says in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl.state.json").exists()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def test_a_file_that_grows_is_counted_once(ready: Path, tmp_path: Path) -> None:
    """What `serve --answers` appends to, looked at every night."""
    answers, state = tmp_path / "a.jsonl", tmp_path / "nights.json"
    rows = lines(ready / "same.jsonl")
    for looks, end in enumerate((80, 81, 200), 1):
        answers.write_text("".join(rows[:end]))
        result = monitor(answers, against=ready / "c", state=state)
        assert result.drift.looks == looks
    kept = json.loads(state.read_text())
    assert [look["seen"]["rows"] for look in kept["looks"]] == [80, 1, 119]
    labels = Counter(json.loads(row)["label"] for row in rows)
    counts = np.array([look["seen"]["predicted"] for look in kept["looks"]]).sum(axis=0)
    assert counts.tolist() == [labels[klass] for klass in range(3)]
    assert not result.drift.drifted


@pytest.mark.parametrize("order", [lambda rows: rows * 2, lambda rows: rows[::-1]])
def test_a_row_is_counted_once_wherever_it_stands(
    order: Callable[[list[str]], list[str]], ready: Path, tmp_path: Path
) -> None:
    rows, answers = lines(ready / "same.jsonl"), tmp_path / "a.jsonl"
    answers.write_text("".join(rows[:150]))
    monitor(answers, against=ready / "c")
    size = (tmp_path / "a.jsonl.state.json").stat().st_size
    answers.write_text("".join(order(rows)))
    monitor(answers, against=ready / "c")
    kept = json.loads((tmp_path / "a.jsonl.state.json").read_text())
    assert [look["seen"]["rows"] for look in kept["looks"]] == [150, 50]
    look = len(json.dumps(kept["looks"][1]))
    assert (tmp_path / "a.jsonl.state.json").stat().st_size <= size + look + 50 * 16
    # Nor in a file of its own.
    (tmp_path / "b.jsonl").write_text("".join(order(rows)))
    found = monitor(tmp_path / "b.jsonl", against=ready / "c").drift
    assert found.answers.rows == 200


def test_labels_show_a_broken_promise(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    given = [row for row in rows if row["answer"] not in ("abstain", "unfamiliar")]
    wrong = [{"id": row["id"], "label": (row["label"] + 1) % 3} for row in given]
    write_lines(tmp_path / "l.jsonl", wrong)
    state = tmp_path / "nights.json"
    monitor(ready / "same.jsonl", against=ready / "c", state=state)
    result = monitor(
        ready / "same.jsonl", against=ready / "c", state=state, labels=tmp_path / "l.jsonl"
    )
    assert result.notes[0].endswith("no answer is new: the table shows those of look 1")
    again = monitor(
        ready / "same.jsonl", against=ready / "c", state=state, labels=tmp_path / "l.jsonl"
    )
    assert again.drift == result.drift
    kept = json.loads(state.read_text())["looks"][1]
    assert kept["seen"] is None
    assert kept["kept"] == {"risk": [len(given), len(given)]}
    assert [test.drifted for test in result.drift.tests] == [False, False, len(given) > 60]
    said = result.to_json()
    assert said["promised"]["risk"] == 0.9
    assert said["labelled"] == {"risk": {"rows": len(given), "broken": len(given)}}
    monitored(result, json=False)
    line = f"risk, of {len(given)} labelled answers 1.000 – ≤ 0.9"
    assert line in [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()]
    text = "id,label\n" + "".join(f"{row['id']},{row['label']}\n" for row in rows)
    (tmp_path / "l.csv").write_text(text)
    other = tmp_path / "other.json"
    calm = monitor(
        ready / "same.jsonl", against=ready / "c", state=other, labels=tmp_path / "l.csv"
    )
    assert json.loads(other.read_text())["looks"][0]["kept"] == {"risk": [len(given), 0]}
    assert not calm.drift.drifted


@pytest.mark.parametrize("head", ["id,label", "key,label", "\ufeffkey;label"])
def test_labels_join_answers_by_their_key(head: str, ready: Path, tmp_path: Path) -> None:
    """Positions recur in the requests to a server; spreadsheets write a mark and semicolons."""
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    given = [row for row in rows if row["answer"] not in ("abstain", "unfamiliar")]
    served = [{**row, "id": at % 3, "key": f"k{at}"} for at, row in enumerate(given)]
    write_lines(tmp_path / "a.jsonl", served)
    text = "".join(
        f"{row['key']},{(row['label'] + (at < 2)) % 3}\n" for at, row in enumerate(served)
    )
    text = text.replace(",", ";" if ";" in head else ",")
    (tmp_path / "l.csv").write_text(f"{head}\n{text}", encoding="utf-8")
    result = monitor(tmp_path / "a.jsonl", against=ready / "c", labels=tmp_path / "l.csv")
    assert result.to_json()["labelled"] == {"risk": {"rows": len(given), "broken": 2}}


def test_labels_of_each_night_count_though_ids_begin_again(ready: Path, tmp_path: Path) -> None:
    """Without ids the rows of every file are numbered from 0."""
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    given = [row for row in rows if row["answer"] not in ("abstain", "unfamiliar")]
    nights = given[: len(given) // 2], given[len(given) // 2 :]
    state = tmp_path / "nights.json"
    for night in (*nights, nights[0]):  # the first one again counts no more
        numbered = [{**row, "id": at} for at, row in enumerate(night)]
        write_lines(tmp_path / "a.jsonl", numbered)
        labels = [{"id": row["id"], "label": row["label"]} for row in numbered]
        write_lines(tmp_path / "l.jsonl", labels)
        result = monitor(
            tmp_path / "a.jsonl", against=ready / "c", state=state, labels=tmp_path / "l.jsonl"
        )
    assert result.to_json()["labelled"] == {"risk": {"rows": len(given), "broken": 0}}


def test_one_file_holds_the_labels_of_every_night(ready: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    given = [row for row in rows if row["answer"] not in ("abstain", "unfamiliar")]
    write_lines(tmp_path / "l.jsonl", [{"id": row["id"], "label": row["label"]} for row in given])
    half = len(given) // 2
    for night, missing in ((given[:half], len(given) - half), (given[half:], half)):
        write_lines(tmp_path / "a.jsonl", night)
        result = monitor(
            tmp_path / "a.jsonl",
            against=ready / "c",
            state=tmp_path / "nights.json",
            labels=tmp_path / "l.jsonl",
        )
        (note,) = (note for note in result.notes if "labels belong to other answers" in note)
        assert f": {missing} of {len(given)} labels" in note
    assert result.to_json()["labelled"] == {"risk": {"rows": len(given), "broken": 0}}


def test_several_files_are_as_many_looks(ready: Path, tmp_path: Path) -> None:
    """In one run as in several; late labels count though their answers were counted before."""
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    nights = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for path, night in zip(nights, (rows[:100], rows[100:]), strict=True):
        write_lines(path, night)
    one = monitor(nights, against=ready / "c", state=tmp_path / "one.json")
    for night in nights:
        each = monitor(night, against=ready / "c", state=tmp_path / "each.json")
    assert one.to_json() == each.to_json()
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "each.json").read_bytes()
    write_lines(tmp_path / "l.jsonl", [{"id": row["id"], "label": row["label"]} for row in rows])
    state = {"state": tmp_path / "one.json", "labels": tmp_path / "l.jsonl"}
    late = monitor(nights, against=ready / "c", **state)
    given = sum(row["answer"] not in ("abstain", "unfamiliar") for row in rows)
    assert late.to_json()["labelled"] == {"risk": {"rows": given, "broken": 0}}
    again = monitor(nights, against=ready / "c", **state)
    assert again.notes[-1].endswith("nothing to count: each label was counted before")


def test_an_answer_to_a_row_of_no_class_is_wrong(ready: Path, tmp_path: Path) -> None:
    """And labels of other nights alone keep no night from being counted."""
    rows = [json.loads(line) for line in lines(ready / "same.jsonl")]
    given = [row for row in rows if row["answer"] not in ("abstain", "unfamiliar")]
    labels = [{"id": row["id"], "label": row["label"]} for row in given]
    labels[0]["label"] = "none of these"
    write_lines(tmp_path / "l.jsonl", labels)
    write_lines(tmp_path / "other.jsonl", [{"id": "another night's", "label": rows[0]["label"]}])
    state = {"against": ready / "c", "state": tmp_path / "s.json"}
    result = monitor(ready / "same.jsonl", **state, labels=tmp_path / "other.jsonl")
    assert result.drift.answers.rows == len(rows)
    (note,) = result.notes
    assert "1 of 1 labels belong to other answers" in note
    result = monitor(ready / "same.jsonl", **state, labels=tmp_path / "l.jsonl")
    assert result.to_json()["labelled"] == {"risk": {"rows": len(given), "broken": 1}}
    assert (
        f"1 of {len(given)} labels name no class of the checkpoint, such as none of these"
        in result.notes[-1]
    )


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("id,label\n0,9\n", "line 2: 9 is not a class of the checkpoint"),
        ("id,truth\n0,1\n", "line 2: has no id, or key, and label"),
        ("id,label\n0,1\n0,1\n", "line 3: 0 has a label twice"),
    ],
)
def test_labels_that_do_not_fit_lose_nothing(
    labels: str, says: str, ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "l.csv").write_text(labels)
    line = ["--against", str(ready / "c"), "--state", str(tmp_path / "s.json")]
    command = ["monitor", str(ready / "same.jsonl"), *line]
    assert run([*command, "--labels", str(tmp_path / "l.csv")]) == 5
    assert says in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()
    assert run(command) == 0


def damaged(text: str) -> str:
    return text[: len(text) // 2]


def another(text: str) -> str:
    return json.dumps({**json.loads(text), "against": "0" * 64})


def edited_by_hand(text: str) -> str:
    state = json.loads(text)
    state["looks"][0]["seen"]["unfamiliar"] = 0
    return json.dumps(state)


def older(text: str) -> str:
    return json.dumps({**json.loads(text), "format": "hydrasurgeon.monitor/1"})


@pytest.mark.parametrize(
    ("change", "alpha", "code", "says"),
    [
        (damaged, "0.01", 5, "is not JSON"),
        (another, "0.01", 5, "was changed since monitor wrote it"),
        (edited_by_hand, "0.01", 5, "was changed since monitor wrote it"),
        (older, "0.01", 5, "format: Input should be 'hydrasurgeon.monitor/3'"),
        (lambda text: "3", "0.01", 5, "is not a state file of monitor, or is damaged"),
        (
            lambda text: '{"format": "x"}',
            "0.01",
            5,
            "is not a state file of monitor, or is damaged",
        ),
        (str, "0.05", 2, "was started with --alpha 0.01, which cannot be changed"),
    ],
)
def test_a_state_that_cannot_be_used_stays_as_it_is(
    change: Callable[[str], str],
    alpha: str,
    code: int,
    says: str,
    ready: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "s.json"
    monitor(ready / "same.jsonl", against=ready / "c", state=state)
    state.write_text(change(state.read_text()))
    before = state.read_text()
    line = ["--against", str(ready / "c"), "--state", str(state), "--alpha", alpha]
    assert run(["monitor", str(ready / "noise.jsonl"), *line]) == code
    assert says in capsys.readouterr().err
    assert state.read_text() == before


def test_a_state_belongs_to_a_checkpoint_and_keeps_its_alpha(
    ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "s.json"
    monitor(ready / "same.jsonl", against=ready / "c", state=state, alpha=0.2)
    assert monitor(ready / "noise.jsonl", against=ready / "c", state=state).drift.alpha == 0.2
    decision = json.loads((ready / "c.heads.json").read_text())["decision"]
    decision["abstain"] = None
    silent = tmp_path / "silent.safetensors"
    edited(ready / "c.safetensors", silent, lambda name, tensor: tensor, decision=decision)
    line = ["monitor", str(ready / "same.jsonl"), "--against", str(silent)]
    assert run([*line, "--state", str(state)]) == 5
    assert "belongs to another checkpoint" in capsys.readouterr().err
    (tmp_path / "l.csv").write_text("id,label\n0,1\n")
    labels = ["--labels", str(tmp_path / "l.csv"), "--state", str(tmp_path / "other.json")]
    assert run([*line, *labels]) == 2
    assert "the checkpoint has no promise that labels" in capsys.readouterr().err
