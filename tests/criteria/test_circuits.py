"""Circuits: every search against an independent, obvious version of Algorithm 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slow_circuits import algorithm_1

import hydrasurgeon as hs
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes
from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.manifest import read_manifest, sidecar
from hydrasurgeon.statistics import metrics

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=5"


@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_search_is_algorithm_1(tiny: MAKE, images: SPEC, objective: str) -> None:
    path = tiny()
    data, ood = images(rows=40), images("ood.npz", rows=30, seed=5, labels=False)
    expected, trace = algorithm_1(path, data, ood, objective, 6)
    found = hs.score(
        path, method="circuit", objective=objective, data=data, ood=[ood], remove=6, batch_size=7
    ).result
    assert list(found.order) == expected
    assert found.trace == pytest.approx(trace, abs=1e-9)


def searched(path: Path, search: str, **options: object) -> tuple[tuple[str, int, int], ...]:
    out = path.with_name(f"{search}.safetensors")
    return hs.score(
        path, method="circuit", search=search, out=out, force=True, **options
    ).result.order


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_late_layers_and_ragged_heads(
    tiny: MAKE, images: SPEC, tmp_path: Path, objective: str
) -> None:
    mask = tmp_path / "mask.json"
    mask.write_text('{"vision": [[0, 2], [], [0, 1, 3]]}')
    path = hs.prune(tiny(), mask=mask, out=tmp_path / "ragged.safetensors").path
    data, ood = images(rows=33), images("ood.npz", rows=21, seed=2)
    whole, _ = algorithm_1(path, data, ood, objective, 4)
    late, _ = algorithm_1(path, data, ood, objective, 2, layers=(1, 2))
    options = {"objective": objective, "data": data, "ood": [ood], "batch_size": 8}
    assert list(searched(path, "exact", remove=4, **options)) == whole
    assert list(searched(path, "exact", remove=2, layers="1-2", **options)) == late


def test_ties_go_to_the_first_head(tiny: MAKE, images: SPEC) -> None:
    """Without the classifier's weights all samples look alike, and so do all heads."""
    from safetensors.torch import load_file, save_file

    path = tiny()
    weights = {k: v * (0 if k.startswith("head.") else 1) for k, v in load_file(path).items()}
    bare = path.with_name("blank.safetensors")
    save_file(weights, bare)
    for objective in ("acc", "avg"):
        order = searched(
            bare,
            "exact",
            objective=objective,
            data=images(),
            ood=[images("o.npz", seed=1)],
            remove=5,
            arch=ARCH,
        )
        assert order == (*(("vision", 0, h) for h in range(4)), ("vision", 1, 0))


def outcomes(draw: st.DrawFn, circuits: int) -> tuple[Objective, Outcomes]:
    kind = draw(st.sampled_from(["acc", "ood", "avg"]))
    n, m = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    numbers = st.integers(-4, 4).map(lambda x: x / 2)
    rows = [
        torch.tensor(draw(st.lists(numbers, min_size=circuits * k, max_size=circuits * k))).double()
        for k in (n, n, m)
    ]
    margin, familiar, ood_certainty = (r.view(circuits, -1) for r in rows)
    return Objective(kind, n, m), Outcomes(margin, familiar, ood_certainty)


@given(st.data())
def test_points_allow_for_rounding(data: st.DataObject) -> None:
    """Whatever the logits are within the tolerance, the points lie in the interval."""
    objective, seen = outcomes(data.draw, 2)
    tolerance = 0.3
    shifts = [
        torch.tensor(
            data.draw(st.lists(st.floats(-0.6, 0.6), min_size=part.numel(), max_size=part.numel()))
        )
        .double()
        .view(part.shape)
        for part in (seen.margin, seen.familiar, seen.ood_certainty)
    ]
    moved = Outcomes(
        *(
            p + s
            for p, s in zip((seen.margin, seen.familiar, seen.ood_certainty), shifts, strict=True)
        )
    )
    for (low, high), (true, same) in zip(
        objective.points(seen, tolerance), objective.points(moved), strict=True
    ):
        assert low <= true <= high
        assert true == same or bool((moved.margin == 0).any())


@given(st.data())
def test_points_are_the_metrics(data: st.DataObject) -> None:
    objective, seen = outcomes(data.draw, 1)
    ((points, _),) = objective.points(
        Outcomes(seen.margin + 0.1, seen.familiar, seen.ood_certainty)
    )
    accuracy = float((seen.margin + 0.1 > 0).double().mean())
    auroc = metrics.auroc(-seen.familiar[0].numpy(), -seen.ood_certainty[0].numpy())
    expected = {"acc": accuracy, "ood": auroc, "avg": (accuracy + auroc) / 2}[objective.kind]
    assert objective.value(points) == pytest.approx(expected, abs=1e-12)


class Killed(Exception):
    pass


def killer(after: int) -> Callable[[str, int, int], None]:
    def tick(what: str, done: int, total: int) -> None:
        if what.startswith(f"{after}/"):
            raise Killed

    return tick


@pytest.mark.slow
def test_a_killed_search_ends_with_the_same_bytes(tiny: MAKE, images: SPEC) -> None:
    data, ood = images(rows=40), images("ood.npz", rows=40, seed=3)
    options = {
        "method": "circuit",
        "data": data,
        "ood": [ood],
        "search": "exact",
        "remove": 6,
        "batch_size": 16,
    }
    whole, cut = tiny("whole.safetensors"), tiny("cut.safetensors")
    hs.score(whole, **options)
    state = cut.with_name("cut.circuit-avg.search.json")
    for after in (2, 5):
        with pytest.raises(Killed):
            hs.score(cut, progress=killer(after), **options)
        assert len(json.loads(json.loads(state.read_text())["position"])["order"]) == after
    hs.score(cut, **options)
    assert not state.exists()
    ours, theirs = read_manifest(sidecar(cut)), read_manifest(sidecar(whole))
    assert ours.scores == theirs.scores


@pytest.mark.parametrize("amount", [3, 7])
def test_a_killed_search_goes_on_for_another_amount(tiny: MAKE, images: SPEC, amount: int) -> None:
    """An order has prefixes: shortened or extended, it is what a search for that amount finds."""
    options = {
        "method": "circuit",
        "objective": "acc",
        "data": images(rows=25),
        "search": "exact",
        "batch_size": 16,
    }
    whole, cut = tiny("whole.safetensors"), tiny("cut.safetensors")
    hs.score(whole, remove=amount, **options)
    with pytest.raises(Killed):
        hs.score(cut, progress=killer(5), remove=6, **options)
    hs.score(cut, remove=amount, **options)
    assert not cut.with_name("cut.circuit-acc.search.json").exists()
    assert read_manifest(sidecar(cut)).scores == read_manifest(sidecar(whole)).scores


def test_a_state_of_another_search_is_refused_by_name(tiny: MAKE, images: SPEC) -> None:
    path, data = tiny(), images()
    options = {"method": "circuit", "objective": "acc", "remove": 3}
    with pytest.raises(Killed):
        hs.score(path, data=data, progress=killer(1), **options)
    for change, said in (
        ({"data": images("other.npz", seed=8)}, "data"),
        ({"search": "attribution"}, r"search \(exact, now attribution\)"),
        ({"layers": "1-2"}, "layers"),
    ):
        with pytest.raises(UsageError, match=f"another .*{said}") as caught:
            hs.score(path, **{**options, "data": data, **change})
        assert "vit.circuit-acc.search.json" in str(caught.value.hint)
    other = tiny("other.safetensors", seed=9)
    other.replace(path)
    sidecar(other).replace(sidecar(path))
    with pytest.raises(UsageError, match="another weights"):
        hs.score(path, data=data, **options)
    path.with_name("vit.circuit-acc.search.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        hs.score(path, data=data, **options)


@pytest.mark.slow
def test_members_from_circuits(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    path, data, ood = tiny(), images(), images("ood.npz", seed=3)
    for objective in ("acc", "ood"):
        hs.score(path, method="circuit", objective=objective, data=data, ood=[ood], remove=8)
    scores = read_manifest(sidecar(path)).scores
    assert set(scores) == {"circuit-acc", "circuit-ood"}
    assert [len(record.spec) > 0 for record in scores["circuit-ood"].data] == [True, True]
    for objective in ("acc", "ood"):
        kept = hs.prune(
            path,
            method="circuit",
            objective=objective,
            keep=2,
            out=tmp_path / f"{objective}.safetensors",
        ).manifest.kept["vision"]
        gone = {(la, h) for _, la, h in scores[f"circuit-{objective}"].order[:6]}
        assert kept == tuple(tuple(h for h in range(4) if (la, h) not in gone) for la in range(3))
    with pytest.raises(UsageError, match="circuit-acc and circuit-ood"):
        hs.prune(path, method="circuit", keep=2, out=tmp_path / "x.safetensors")
    pools = {
        hs.prune(path, method="circuit-ood", sample="4/8", seed=s).manifest.weights_sha256
        for s in range(3)
    }
    assert len(pools) > 1
    inline = hs.prune(path, method="circuit", objective="avg", keep=3, data=data, ood=[ood])
    assert inline.path.name == "vit-circuit-avg-k3.safetensors"
    assert inline.removed == 3
    assert not list(tmp_path.glob("*.search.json"))
