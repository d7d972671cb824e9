"""calibrate --certify: what is fitted comes from --data alone, what is promised from the other rows alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_models import probe_folder
from tiny_families import FAMILIES
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.errors import DataError, UsageError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe of texts, a hydra, and tables."""
    place = tmp_path_factory.mktemp("certify")
    probe_folder(place)
    paths = members_of(place / "probe", FAMILIES["BERT"], place)
    hs.fuse(paths, out=place / "hydra.safetensors")
    with (place / "val.csv").open() as file:
        rows = [*csv.reader(file)]
    for name, some in {"fit": rows[1:151], "other": rows[151:301], "held": rows[301:]}.items():
        with (place / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *some])
    return place


def calibrated(place: Path, out: Path, data: str, certify: str, **more: Any) -> Any:
    files = {"data": str(place / f"{data}.csv"), "certify": str(place / f"{certify}.csv")}
    model = more.pop("model", "probe")
    about = {"risk": 0.5, "device": "cpu", "force": True, "fit_data": str(place / "train.csv")}
    return hs.calibrate(place / model, out=out, **files, **about | more).decision


HOW: dict[str, dict[str, Any]] = {
    "alone": {"words": "off"},
    "words blend": {"words": "blend"},
    "words cascade": {"words": "cascade", "budget": "on=0.6", "ood_score": "msp"},
    "a cascade": {"model": "hydra", "cascade": True, "words": "off", "max_loss": 0.5, "risk": None},
}


@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_each_part_has_its_own_rows(how: dict[str, Any], place: Path, tmp_path: Path) -> None:
    usual = calibrated(place, tmp_path / "c", "fit", "held", **how)
    assert (usual.fitted, usual.certified) == (150, 300)
    answers = hs.predict(tmp_path / "c", data=str(place / "held.csv"), device="cpu", cascade=False)
    given = [row["answer"] not in ("abstain", "unfamiliar") for row in answers]
    if usual.abstain is not None:
        # Other batches round otherwise: the row whose score is the OOD threshold may change sides.
        assert usual.abstain.coverage == pytest.approx(np.mean(given), abs=1.01 / len(given))
    others = [
        calibrated(place, tmp_path / "d", *files, **how)
        for files in (("fit", "other"), ("other", "held"))
    ]
    same, new = others

    def near(values: Any) -> Any:
        """Batches round otherwise."""
        return pytest.approx(values, rel=1e-4)

    assert same.temperature == near(usual.temperature)
    assert same.ood.score == usual.ood.score
    assert same.conformal.threshold != usual.conformal.threshold
    if usual.words is not None:
        assert same.words.weights == near(usual.words.weights)
        assert new.words.weights != near(usual.words.weights)
    else:
        assert new.temperature != near(usual.temperature)
    if usual.cascade is not None:
        assert same.cascade.threshold == near(usual.cascade.threshold)
        assert same.cascade.temperature == near(usual.cascade.temperature)
        assert new.cascade.temperature != near(usual.cascade.temperature)
        assert same.cascade.conformal.threshold != usual.cascade.conformal.threshold


@pytest.mark.usefixtures("labels_need_not_fit")
def test_rows_that_cannot_be_read_leave_their_part(place: Path, tmp_path: Path) -> None:
    for name in ("fit", "held"):
        lines = (place / f"{name}.csv").read_text().splitlines()
        (tmp_path / f"{name}.csv").write_text("\n".join([*lines[:2], ",praise", *lines[2:]]))
    how = {"words": "off", "skip_bad": True, "model": place / "probe", "ood_score": "msp"}
    decision = calibrated(tmp_path, tmp_path / "c", "fit", "held", **how, fit_data=None)
    assert (decision.fitted, decision.certified) == (150, 300)
    usual = calibrated(place, tmp_path / "d", "fit", "held", words="off", ood_score="msp")
    assert decision.temperature == usual.temperature
    assert decision.conformal.threshold == usual.conformal.threshold


def test_what_cannot_certify(place: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds the same samples as --data"):
        calibrated(place, tmp_path / "c", "fit", "fit")
    lines = (place / "fit.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[:9]))
    with pytest.raises(DataError, match="8 rows are too few to fit a decision state"):
        calibrated(place, tmp_path / "c", str(tmp_path / "few"), "held")
    with pytest.raises(DataError, match=r"--risk 0\.01: 450 rows cannot promise it"):
        calibrated(place, tmp_path / "c", "fit", "held", risk=0.01)
    with pytest.raises(UsageError, match="--certify"):
        hs.calibrate(predictions="p.npz", certify="held.csv", out=tmp_path / "c")
