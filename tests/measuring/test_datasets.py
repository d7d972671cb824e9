"""eval on several labelled data sets: by value, and one data set as it always was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hydrasurgeon as hs
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.sets import labelled_sets

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.mark.slow
def test_each_data_set_is_measured_as_if_alone(tiny: MAKE, images: SPEC) -> None:
    path = tiny()
    members = [path, hs.prune(path, method="random", keep=2).path]
    specs = [
        images("a.npz", rows=30),
        f"second={images('b.npz', rows=50, seed=4)}",
        f"third={images('c.npz', seed=9)}",
    ]
    ood = [images("ood.npz", seed=7, labels=False)]
    together = hs.evaluate(members, data=specs, ood=ood, device="cpu").report
    for spec, name in zip(specs, ("a", "second", "third"), strict=True):
        alone = hs.evaluate(members, data=spec, device="cpu").report
        for found, single in zip(together.results, alone.results, strict=True):
            (here,) = (each for each in found.sets or () if each.name == name)
            assert here.model_dump(exclude={"name"}) == single.id.model_dump()
            assert single.sets is None
    for found in together.results:
        assert found.sets is not None
        assert found.sets_average is not None
        assert found.id.n == found.sets[0].n == 30
        assert found.ood[0].n == 40
        mean = np.mean([each.accuracy for each in found.sets])
        assert found.sets_average.accuracy == pytest.approx(mean, abs=1e-12)
    ensemble = hs.evaluate(members, data=specs, ensemble=True, device="cpu").report.results[0]
    fixed = hs.evaluate(members, data=specs[1], ensemble=True, device="cpu").report.results[0]
    assert ensemble.sets is not None
    assert ensemble.sets[1].nll == fixed.id.nll
    cool = hs.evaluate(
        members, data=specs, ensemble=True, temperature=3, device="cpu"
    ).report.results[0]
    assert cool.sets is not None
    assert cool.sets[1].nll != ensemble.sets[1].nll
    assert cool.sets[1].accuracy == ensemble.sets[1].accuracy


def test_names_of_data_sets(tmp_path: Path) -> None:
    odd = tmp_path / "k=v.npz"
    odd.touch()
    given = [
        "hf:uoft-cs/cifar100:test",
        "hf:org/food101:validation",
        "imagenet/val",
        "b=x/y.npz",
        str(odd),
    ]
    assert [(s.name, s.spec) for s in labelled_sets(given, None)] == [
        ("cifar100", given[0]),
        ("food101", given[1]),
        ("val", given[2]),
        ("b", "x/y.npz"),
        ("k=v", str(odd)),
    ]
    with pytest.raises(UsageError, match="val occurs twice"):
        labelled_sets(["a/val", "b/val"], None)
    with pytest.raises(UsageError, match="data is given already"):
        labelled_sets(["a=x", "b=y"], ["data", "c=names.txt"])
    assert labelled_sets("x.npz", "k=1,k=2")[0].classes == "k=1,k=2"
