"""What reaches the terminal: names from files as text without effect, and tables at every width with each number whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydrasurgeon import render
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.files.manifest import (
    Fusion,
    HydraManifest,
    Input,
    Manifest,
    Member,
    Model,
    Score,
    SingleManifest,
    Step,
    Tower,
)
from hydrasurgeon.files.untrusted import code, visible
from hydrasurgeon.measuring.results import (
    COST,
    Cost,
    Diversity,
    IdResult,
    OodAverage,
    Report,
    Result,
)
from hydrasurgeon.render import console
from hydrasurgeon.render.console import show_wrapped
from hydrasurgeon.render.terminal_tables import bounded, show_table
from hydrasurgeon.report.columns import columns
from hydrasurgeon.sharing.base import Export
from hydrasurgeon.stages.bench import Benched, Contender, Point
from hydrasurgeon.stages.evaluate import Evaluation
from hydrasurgeon.stages.fuse import Fused
from hydrasurgeon.stages.inspect import Inspection
from hydrasurgeon.stages.prune import Pruned
from hydrasurgeon.stages.score import Scored

# Clipboard, clear screen, C1, right-to-left override, markup, a line of our own, a surrogate.
EVIL = "x\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\u202e[red]y[/red]\nerror: done\r\x7f\u2028\udcff"
SHOWN = r"x\x1b]52;c;aGk=\x07\x1b[2J\x9b2J\u202e[red]y[/red]\nerror: done\r\x7f\u2028\udcff"
TOWERS = {EVIL: Tower.model_construct(layers=1, heads=2, head_dim=4, dim=8)}
KEPT = {EVIL: ((0,),)}


@given(st.text())
def test_visible_is_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()
    if text.isprintable():
        assert visible(text) == text


@given(st.text(st.sampled_from("`ab| \n")))
def test_a_code_span_ends_where_it_says(text: str) -> None:
    """CommonMark: a run of backticks closes a span only if it is as long as the one that opened it."""
    span = code(text)
    fence = re.match("`+", span)
    assert fence is not None
    inside = span[len(fence[0]) : -len(fence[0])]
    assert span.endswith(fence[0])
    assert fence[0] not in re.findall("`+", inside)
    assert not inside.startswith("`")
    assert not inside.endswith("`")
    assert not {"|", "\n"} & set(span)


# The boundary refuses most of these names; the door does not rely on that.
def manifest(kind: str = "member", score: Score | None = None) -> Manifest:
    hydra = kind == "hydra"
    members = (Member.model_construct(kept=KEPT, sha256=EVIL),) * 2
    record = HydraManifest if hydra else SingleManifest
    return record.model_construct(
        kind=kind,
        model=Model.model_construct(family="timm", arch=EVIL, num_classes=2, labels=(EVIL, "b")),
        towers=TOWERS,
        kept=None if hydra else KEPT,
        members=members if hydra else None,
        fusion=Fusion.model_construct(mlp="average", trunk=0) if hydra else None,
        scores={EVIL: score or Score.model_construct(values={EVIL: ((1.0, 2.0),)})},
        weights_sha256="0" * 64,
        history=(
            Step.model_construct(
                command=EVIL,
                args={EVIL: EVIL, "k": {EVIL: EVIL}},
                inputs=(Input.model_construct(name=EVIL, sha256=EVIL),),
            ),
        ),
    )


def result() -> Result:
    quality = {"accuracy": 0.9, "brier": 0.1, "nll": 0.2, "ece": 0.01, "aece": 0.02}
    foreign = OodAverage(auroc=0.9, fpr95=0.1, aupr=0.8, aupr_id=0.7)
    sets = tuple({"name": name, "n": 10, **quality} for name in (EVIL, "b"))
    return Result(
        name=EVIL,
        kind=EVIL,
        members=1,
        id=IdResult(n=10, **quality),
        ood=({"name": EVIL, "group": "far", "n": 3, **foreign.model_dump()},),
        ood_average={"far": foreign, "all": foreign},
        shift=(),
        diversity=Diversity(mi=0.0, disagreement=0.0),
        cost=Cost(params=1, macs=2),
        sets=sets,
        sets_average=quality,
    )


def scored(score: Score | None = None) -> Scored:
    return Scored(path=Path(EVIL), manifest=manifest(score=score), method=EVIL)


ORDER = Score.model_construct(order=((EVIL, 0, 1),), trace=(0.5,), settings={"notes": [EVIL]})


def bench() -> Benched:
    point = Point(
        batch=1,
        dtype=EVIL,
        latency_ms=1.0,
        throughput=1.0,
        peak_bytes=1,
        ratio=None,
        **{k: 1 for k in ("runs",) if k in Point.model_fields},
    )
    contender = Contender(name=EVIL, kind=EVIL, params=1, macs=1, macs_ratio=1.0, points=(point,))
    return Benched(machine={}, settings={}, results=(contender,), notes=(EVIL,))


SHOWS: dict[str, Callable[[], object]] = {
    "inspect": lambda: render.inspected(
        Inspection(Path(EVIL), manifest(), 1, 1, 1, (EVIL,), True, EVIL), json=False, quiet=False
    ),
    "inspect hydra": lambda: render.inspected(
        Inspection(Path(EVIL), manifest("hydra"), 1, 2, 1, ("F32",), True, None),
        json=False,
        quiet=False,
    ),
    "score, values": lambda: render.scored(scored(), json=False, quiet=False),
    "score, order": lambda: render.scored(scored(ORDER), json=False, quiet=False),
    "prune": lambda: render.pruned(
        Pruned(Path(EVIL), manifest(), 1, (EVIL,)), json=False, quiet=False
    ),
    "fuse": lambda: render.fused(
        Fused(Path(EVIL), manifest("hydra"), 2, 2, 1, None, EVIL), json=False, quiet=False
    ),
    "eval": lambda: render.evaluated(
        Evaluation(Report(settings={}, results=(result(), result())), (EVIL,)),
        json=False,
        quiet=False,
    ),
    "bench": lambda: render.benched(bench(), json=False, quiet=False),
    "export": lambda: render.exported(
        Export(Path(EVIL), 1, (EVIL,), (EVIL,), 0.0, 17), json=False, quiet=False
    ),
    "failed": lambda: render.failed(CheckFailed(EVIL, hint=EVIL, details=(EVIL,))),
    "say": lambda: render.say(EVIL, style="bold"),
}


@pytest.mark.parametrize("what", SHOWS)
@pytest.mark.parametrize("terminal", [False, True])
def test_names_do_nothing(
    what: str, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal:
        for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "70")):
            monkeypatch.setenv(name, value)
    SHOWS[what]()
    said = capsys.readouterr()
    ours = re.sub(r"\x1b\[[0-9;]*m", "", said.out + said.err)  # colours, which only we set
    assert all(line.isprintable() for line in ours.split("\n"))
    assert SHOWN in re.sub(r"\n +", " ", ours) or terminal
    assert "\nerror: done" not in ours
    assert ("\x1b[" in said.out + said.err) == terminal or what == "score, order"


def test_json_is_ascii_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    render.as_json({"name": EVIL, "numbers": [float("nan"), (float("inf"), 1.5)], EVIL: 1})
    out = capsys.readouterr().out
    assert all(line.isascii() and line.isprintable() for line in out.split("\n"))
    assert json.loads(out) == {"name": EVIL, "numbers": [None, [None, 1.5]], EVIL: 1}


@pytest.mark.parametrize(
    "name", ["d[/red].safetensors", "run[lr=0.1].safetensors", "e\x1b[2J.safetensors"]
)
def test_paths_are_no_markup(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    source = tiny()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    line = ["prune", "--method", "random", "--keep", "2", str(source), "-o", str(tmp_path / name)]
    assert run(line) == 0
    assert f"/{visible(name)}: 6 heads removed" in capsys.readouterr().out
    assert run(["inspect", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.startswith(str(tmp_path / visible(name)))
    assert run(["inspect", str(tmp_path / f"gone {name}")]) == 3
    assert visible(f"gone {name}") in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["inspect", EVIL], ["inspect", f"--{EVIL}"], [EVIL], ["eval", "x", "--limit", EVIL]]
)
def test_words_of_the_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) in (2, 3)
    said = capsys.readouterr().err
    assert all(line.isprintable() for line in said.split("\n"))
    assert "\nerror: done" not in said


def test_without_a_terminal_no_line_comes_twice_in_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "PLAIN_EVERY_SECONDS", 0.0)
    with render.progress(quiet=False) as tick:
        assert tick is not None
        for done in (0, 0, 0, 1, 1):
            tick("words", done, 1)
    assert capsys.readouterr().err.splitlines() == ["words: 0/1", "words: 1/1"]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]):
    def shown(*table: object) -> str:
        capsys.readouterr()
        show_table(*table)
        return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())

    return shown


names = st.text(st.sampled_from("ab 模型[/]\x1b\n"), min_size=1, max_size=12)
numbers = st.floats(0, 99).map(lambda value: f"{value:.3f}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_number_is_ever_cut(terminal, data: st.DataObject) -> None:
    groups = st.sampled_from(["", "near", "far"])
    heads = [(data.draw(groups), data.draw(names)) for _ in range(data.draw(st.integers(1, 6)))]
    rows = [
        [data.draw(names), *(data.draw(numbers) for _ in heads)]
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    shown = terminal("t", heads, rows)
    for _, *cells in rows:
        for number in cells:
            assert number in shown.split()
    assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.2684e6, 0.43412e6, 0.91523e6, None], ["0.268", "0.434", "0.915", "–"]),
        ([5.06e6, 11.99e6, 15.2e6], ["5.06", "11.99", "15.20"]),
        ([1234.5e6, 0.0], ["1234", "0"]),
    ],
)
def test_costs_have_as_many_decimals_in_each_row(
    values: list[float | None], shown: list[str]
) -> None:
    (column,) = columns(COST[1:2], [type("Cost", (), {"macs": value}) for value in values])
    assert [cell.text for cell in column.cells] == shown


@pytest.mark.parametrize(
    ("difference", "printed"),
    [
        (0.0, "0"),
        (1.7e-6, "less than 0.00001"),
        (0.00057, "less than 0.001"),
        (0.0044, "0.0044"),
        (0.33, "0.33"),
        (float("nan"), "nan"),
    ],
)
def test_small_differences_are_bounds_without_exponents(difference: float, printed: str) -> None:
    assert bounded(difference) == printed


def test_sentences_wrap_within_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_wrapped("a sentence of many words " * 10)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == ("a sentence of many words " * 10).strip()
