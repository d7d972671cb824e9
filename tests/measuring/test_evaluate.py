"""eval: ensembles, predictions files and the report, by value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from edited import edited
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.stages.evaluate import Evaluation

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def members(tiny: MAKE, tmp_path: Path) -> list[Path]:
    path = tiny()
    return [
        hs.prune(path, method="random", keep=2, seed=s, out=tmp_path / f"m{s}.safetensors").path
        for s in range(3)
    ]


def test_a_hydra_and_its_unfused_ensemble_agree(
    members: list[Path], images: SPEC, tmp_path: Path
) -> None:
    hydra = hs.fuse(members, out=tmp_path / "h.safetensors").path
    options = {
        "data": images(),
        "ood": [
            f"near:n={images('n.npz', seed=5)}",
            f"far:f={images('f.npz', seed=6, labels=False)}",
        ],
    }
    fused = hs.evaluate([hydra], **options).report.results[0]
    apart = hs.evaluate(members, ensemble=True, **options).report.results[0]
    assert (fused.kind, apart.kind, fused.members, apart.members) == ("hydra", "ensemble", 3, 3)
    assert fused.id.model_dump() == pytest.approx(apart.id.model_dump(), abs=1e-6)
    for a, b in zip(fused.ood, apart.ood, strict=True):
        assert (a.name, a.group) == (b.name, b.group)
        assert a.auroc == pytest.approx(b.auroc, abs=1e-6)
    assert fused.diversity.mi > 0
    assert fused.cost.params < apart.cost.params
    assert fused.ood_average["all"].auroc == pytest.approx(
        (fused.ood[0].auroc + fused.ood[1].auroc) / 2
    )


def test_an_ensemble_stands_beside_its_members_and_a_hydra(
    members: list[Path], images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hs.fuse(members, out="h.safetensors")
    options = {"data": images(), "ood": [f"near:n={images('n.npz', seed=5)}"], "ci": 0.9}
    rows = ["m0", "next=h", "deep=m0+m1.safetensors+m2", "m1+m2"]
    found = hs.evaluate(rows, asserts=["next:id.nll<=deep+0.001"], **options).report
    assert [each.name for each in found.results] == ["m0", "next", "deep", "m1 + m2"]
    assert [each.kind for each in found.results] == ["member", "hydra", "ensemble", "ensemble"]
    deep, pair = found.results[2:]
    for ours, parts in ((deep, members), (pair, members[1:])):
        (alone,) = hs.evaluate(parts, ensemble=True, **options).report.results
        assert ours.model_copy(update={"name": alone.name}) == alone
    assert found.asserts is not None
    assert [each.holds for each in found.asserts] == [True]
    # Of members that are rows too nothing else is run; where more is measured, they are run again.
    further = [f"one={options['data']}", f"two={images('b.npz', seed=7)}"]
    every = ["m0", "m1", "m2", "deep=m0+m1+m2"]
    for more in (
        {"data": further},
        {"data": options["data"], "temperature": "fit", "val": images("v.npz", seed=8)},
    ):
        *_, ours = hs.evaluate(every, **more).report.results
        (alone,) = hs.evaluate(members, ensemble=True, **more).report.results
        assert ours.model_copy(update={"name": alone.name}) == alone
    timed = hs.evaluate(every, data=options["data"], time=True).report.results
    assert min(each.cost.latency_ms for each in timed) > 0


def test_what_is_no_ensemble(
    members: list[Path],
    images: SPEC,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--data", images(rows=10)]
    for words, code, says in (
        (["m0+gone"], 3, "gone: no such checkpoint"),
        (["m0+"], 3, "'' is not a checkpoint's path"),
        (["m0+m1", "m2", "--ensemble"], 2, "--ensemble: m0 + m1 is an ensemble already"),
        (["a=m0", "a=m1"], 2, "eval: a occurs twice"),
        (["m0+m1", "--json", "m1.safetensors", "--force"], 2, "is an input of this command"),
        (["m0+m1", "m2", "--predictions", "p"], 2, "--predictions holds one model's logits"),
    ):
        assert run(["eval", *words, *data]) == code, words
        assert says in capsys.readouterr().err
    # A file whose name has a plus is one checkpoint.
    members[0].rename("m1+m2.safetensors")
    (result,) = hs.evaluate(["m1+m2"], data=data[1]).report.results
    assert (result.name, result.kind) == ("m1+m2", "member")
    assert run(["eval", "m1+m2", *data, "--predictions", "p.safetensors"]) == 0


def test_strangers_predictions(tmp_path: Path) -> None:
    z, y = torch.randn(8, 4), torch.arange(8) % 4
    path = tmp_path / "theirs.safetensors"
    save_file({"logits": z, "labels": y, "ood.noise.logits": torch.randn(5, 4)}, path)
    found = hs.evaluate([], predictions_in=[path]).report.results[0]
    assert (found.name, found.kind, found.members, found.ood[0].group) == (
        "theirs",
        "unknown",
        1,
        "far",
    )
    assert found.id.accuracy == pytest.approx(float((z.argmax(-1) == y).float().mean()))
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a readable predictions file"):
        read_predictions(path)


def test_the_report_is_the_contracts(members: list[Path], images: SPEC, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    hs.evaluate(members, data=images(), ood=[f"near:n={images('n.npz')}"], json=out)
    report = json.loads(out.read_text())
    assert report["format"] == "hydrasurgeon.eval/1"
    assert len(report["results"]) == 3
    first = report["results"][0]
    assert set(first) == {
        "name",
        "kind",
        "members",
        "id",
        "ood",
        "ood_average",
        "shift",
        "diversity",
        "cost",
    }
    assert " ".join(first["id"]) == "accuracy brier nll ece aece n smece aurc augrc cov5 mis_auroc"
    assert set(first["ood"][0]) == {"name", "group", "n", "auroc", "fpr95", "aupr", "aupr_id"}
    assert set(first["cost"]) == {"params", "macs", "macs_all_tokens"}
    assert str(tmp_path) not in out.read_text()


def test_the_report_is_the_same_bytes_unless_times_are_asked_for(
    members: list[Path], images: SPEC, tmp_path: Path
) -> None:
    sets = {"data": images(), "ood": [f"near:n={images('n.npz')}"]}
    for name in ("a", "b"):
        hs.evaluate(members, json=tmp_path / f"{name}.json", **sets)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    out, small = tmp_path / "p.safetensors", images("small.npz", rows=10)
    timed = hs.evaluate(members, ensemble=True, time=True, predictions=out, **sets).report
    (cost,) = (result.cost for result in timed.results)
    assert (cost.latency_ms > 0, cost.latency_batch) == (True, 16)
    # A time is of one machine and one moment: a predictions file has none.
    (again,) = hs.evaluate([], predictions_in=[out]).report.results
    assert again.cost == cost.model_copy(update={"latency_ms": None, "latency_batch": None})
    few = hs.evaluate(members[:2], time=True, data=small).report.results
    assert [result.cost.latency_batch for result in few] == [10, 10]


def test_the_table_says_what_it_counts_and_times(
    tiny: MAKE, images: SPEC, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["eval", str(tiny()), "--data", images(rows=10), "--quiet"]
    convention = "MACs leave out tokens of the last layer that the classifier does not read."
    assert run(line) == 0
    plain = capsys.readouterr().out
    assert convention in plain.splitlines()
    assert " ms" not in plain
    assert run([*line, "--time"]) == 0
    timed = capsys.readouterr().out
    assert " ms" in timed
    assert "Times are those of a batch of 10 samples." in timed.splitlines()
    assert run([*line, "--assert", "cost.latency_ms<1e9"]) == 2
    assert "no time was measured" in capsys.readouterr().err
    assert run([*line, "--time", "--assert", "cost.latency_ms<1e9"]) == 0


def test_multiply_adds_by_hand(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    """Per layer 12·d² a token plus attention's two T×T products; plus patches and classifier.

    In the last layer keys and values of all tokens, and the rest for the class token alone: of every model alike.
    """
    tokens, dim, layers, klasses = 17, 32, 3, 5
    whole = tokens * 12 * dim**2 + 2 * tokens * tokens * dim
    last = tokens * 2 * dim**2 + 10 * dim**2 + 2 * tokens * dim
    single = 16 * 49 * dim + (layers - 1) * whole + last + dim * klasses
    paths = [tiny(f"{seed}.safetensors", seed=seed) for seed in range(3)]
    hydra = hs.fuse(paths, out=tmp_path / "h.safetensors", mlp="separate").path
    alone = hs.evaluate([*paths, hydra], data=images()).report.results
    together = hs.evaluate(paths, ensemble=True, data=images()).report.results
    assert [r.cost.macs for r in alone] == [single] * 3 + [3 * single]
    assert [r.cost.macs for r in together] == [3 * single]
    assert [r.macs for r in hs.bench([*paths, hydra], batch="1", runs=1).results] == [
        single
    ] * 3 + [3 * single]


def test_an_ensemble_of_predictions_files_is_that_of_their_models(
    members: list[Path], images: SPEC, tmp_path: Path
) -> None:
    options = {
        "data": images(),
        "ood": [f"near:n={images('n.npz', seed=5)}"],
        "shift": [f"fog:2={images('s.npz', seed=6)}"],
    }
    together = hs.evaluate(members, ensemble=True, **options).report.results[0]
    files = [tmp_path / f"{path.name}.p" for path in members]
    for path, file in zip(members, files, strict=True):
        hs.evaluate([path], predictions=file, **options)
    apart = hs.evaluate([], ensemble=True, predictions_in=files).report.results
    assert len(apart) == 1
    assert apart[0] == together
    # Beside checkpoints, a file is a result of its own.
    beside = hs.evaluate(members, ensemble=True, predictions_in=files[:1], **options).report
    assert [result.members for result in beside.results] == [3, 1]
    with pytest.raises(UsageError, match="two predictions files"):
        hs.evaluate([], ensemble=True, predictions_in=files[:1])


def test_members_read_inputs_by_their_own_preprocessing(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    """In any order: the mean of what each says alone."""
    data, one = images(), tiny("one.safetensors")
    model = open_checkpoint(one).manifest.model
    brighter = {**model.preprocess, "mean": [0.1], "std": [0.9]}
    other = edited(
        tiny("two.safetensors", seed=1),
        tmp_path / "other.safetensors",
        lambda _, tensor: tensor,
        model=model.model_copy(update={"preprocess": brighter}),
    )
    found = [
        hs.evaluate(pair, data=data, ensemble=True, device="cpu").report.results[0]
        for pair in ([one, other], [other, one])
    ]
    files = [tmp_path / "one.p", tmp_path / "other.p"]
    for path, file in zip((one, other), files, strict=True):
        hs.evaluate(path, data=data, predictions=file, device="cpu")
    (expected,) = hs.evaluate([], predictions_in=files, ensemble=True).report.results
    for result in found:
        assert result.id.nll == pytest.approx(expected.id.nll, abs=1e-6)
        assert result.diversity.mi == pytest.approx(expected.diversity.mi, abs=1e-6)
    with pytest.raises(UsageError, match="read inputs differently"):
        hs.evaluate([one, other], data=data, ensemble=True, time=True, device="cpu")


def test_one_report_goes_to_stdout(tiny: MAKE, images: SPEC) -> None:
    with pytest.raises(UsageError, match="cannot both go to stdout"):
        hs.evaluate(tiny(), data=images(), html="-", markdown="-")


def test_predictions_are_not_written_under_a_name_that_reads_otherwise(
    tiny: MAKE, images: SPEC
) -> None:
    with pytest.raises(UsageError, match=r"is written as .safetensors"):
        hs.evaluate(tiny(), data=images(), predictions="said.npz")


def test_a_misspelt_group_of_ood_data_is_refused(tiny: MAKE, images: SPEC) -> None:
    with pytest.raises(UsageError, match=r"no group naer .did you mean near"):
        hs.evaluate(tiny(), data=images(), ood=[f"naer:x={images('b.npz')}"])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"data": "other.npz"}, "other labels"),
        ({"ood": ["near:m=n.npz"]}, "other OOD sets"),
        ({"ood": ["far:n=n.npz"]}, "other OOD sets"),
        ({"shift": ["fog:3=s.npz"]}, "other shifted sets"),
    ],
)
def test_files_about_other_samples_are_no_ensemble(
    members: list[Path],
    images: SPEC,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, object],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    images(), images("other.npz", rows=41), images("n.npz", seed=5), images("s.npz", seed=6)
    options = {"data": "data.npz", "ood": ["near:n=n.npz"], "shift": ["fog:2=s.npz"]}
    hs.evaluate(members[:1], predictions="a.p", **options)
    hs.evaluate(members[1:2], predictions="b.p", **options | changed)
    with pytest.raises(DataError, match=says):
        hs.evaluate([], ensemble=True, predictions_in=["a.p", "b.p"])


def test_labels_in_another_order_are_refused(tmp_path: Path) -> None:
    truth = torch.arange(300) % 3
    logits = 4.0 * torch.eye(3)[truth]

    def measured(labels: torch.Tensor) -> Evaluation:
        save_file({"logits": logits, "labels": labels}, tmp_path / "p.safetensors")
        return hs.evaluate([], predictions_in=[tmp_path / "p.safetensors"])

    with pytest.raises(DataError, match=r"p: the labels do not fit .* accuracy 0.000, and 1.000"):
        measured((truth + 1) % 3)
    mixed = truth[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    assert measured(mixed).report.results[0].id.accuracy < 0.5
    assert measured(truth).report.results[0].id.accuracy == 1
