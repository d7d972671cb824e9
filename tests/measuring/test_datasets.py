"""eval on several labelled data sets: by value, and one data set as it always was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import NAMES, write_clip

import hydrasurgeon as hs
from hydrasurgeon.errors import UsageError
from hydrasurgeon.measuring.sets import labelled_sets

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


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


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    write_clip(tmp_path / "clip")
    return tmp_path / "clip"


def folders(home: Path, names: tuple[str, ...]) -> str:
    from PIL import Image

    images = np.random.default_rng(len(names)).integers(0, 255, (12, 28, 28, 3), dtype=np.uint8)
    for i, image in enumerate(images):
        folder = home / sorted(names)[i % len(names)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:02}.png")
    return str(home)


def test_each_data_set_has_its_own_class_names(clip: Path, tmp_path: Path) -> None:
    animals, things = (
        folders(tmp_path / "animals", NAMES),
        folders(tmp_path / "things", ("cup", "jar", "pen", "key")),
    )
    codes = folders(tmp_path / "codes", ("n001", "n002"))
    options: dict[str, Any] = {"device": "cpu"}
    found = hs.evaluate(
        [clip],
        data=[animals, things, f"in1k={codes}"],
        classes=["data", "in1k=tench,goldfish"],
        **options,
    ).report
    (result,) = found.results
    assert result.sets is not None
    for each, spec, classes in zip(
        result.sets, (animals, things, codes), ("data", "data", "tench,goldfish"), strict=True
    ):
        (alone,) = hs.evaluate([clip], data=spec, classes=classes, **options).report.results
        assert each.model_dump(exclude={"name"}) == alone.id.model_dump()
    assert found.settings["data"] == ["animals=animals", "things=things", "in1k=codes"]
    hashes = [found.settings["sets"][name]["classes_sha256"] for name in ("things", "in1k")]
    assert len({found.settings["classes_sha256"], *hashes}) == 3


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
    with pytest.raises(UsageError, match="val is there twice"):
        labelled_sets(["a/val", "b/val"], None)
    with pytest.raises(UsageError, match="data is given already"):
        labelled_sets(["a=x", "b=y"], ["data", "c=names.txt"])
    assert labelled_sets("x.npz", "k=1,k=2")[0].classes == "k=1,k=2"
