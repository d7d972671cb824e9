"""examples/paper/corrupt.py: the sets that it writes are what `eval --shift` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corrupt import NAMES, Corrupted, Corruption, corruptions_of, spoiled, write
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data import open_data
from hydrasurgeon.data.labels import Column
from hydrasurgeon.data.samples import Arrays, limited
from hydrasurgeon.errors import UsageError


def scenery(height: int, width: int) -> np.ndarray:
    """Smooth hills, edges and some texture, of the usual mean brightness."""
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    hills = 0.5 + 0.25 * np.sin(9 * rows + 4 * columns) + 0.15 * np.cos(23 * columns)
    hills[height // 3 : height // 2, width // 4 : width // 2] = 0.9
    hills[-height // 4 :, : width // 3] = 0.1
    hills += np.random.default_rng(3).normal(0, 0.03, hills.shape)
    tints = np.array([1.0, 0.85, 0.7])
    return np.clip(hills[..., None] * tints * 255, 0, 255).astype(np.uint8)


def pictures(rows: int = 12) -> Arrays:
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 28, 28, 3), dtype=np.uint8)
    return Arrays("d.npz", pixels, Column(np.arange(rows) % 3))


def test_pictures_as_arrays(
    tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path
) -> None:
    model, spec = tiny(), images()
    shifts = write(spec, tmp_path / "out", ["fog:3", "contrast"])
    assert [shift.partition("=")[0] for shift in shifts] == [
        "fog:3",
        *(f"contrast:{severity}" for severity in range(1, 6)),
    ]
    row = hs.evaluate([model], data=spec, shift=shifts).report.results[0]
    assert [s.name for s in row.shift] == ["fog", *["contrast"] * 5]
    assert row.shift_average is not None
    assert row.shift_average.mce == pytest.approx(1)
    by_severity = {}
    for each in row.shift:
        by_severity.setdefault(each.severity, []).append(each.accuracy)
    means = [np.mean(values) for values in by_severity.values()]
    assert row.shift_average.accuracy == pytest.approx(np.mean(means))
    clean, written = open_data(spec), open_data(shifts[0].partition("=")[2])
    foggy = Corrupted(clean, Corruption("fog", 3))
    assert np.array_equal(np.asarray(written.read(5)), np.asarray(foggy.read(5)))
    assert written.labels.tolist() == clean.labels.tolist()


def test_pictures_of_several_sizes_as_folders(tmp_path: Path) -> None:
    for name, size in (("cat", (40, 30)), ("dog", (30, 40))):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.fromarray(scenery(*size)).save(tmp_path / "in" / name / "x.png")
    (shift,) = write(str(tmp_path / "in"), tmp_path / "out", ["snow:1"])
    written = open_data(shift.partition("=")[2])
    assert written.classes == ("cat", "dog")
    assert [written.read(i).size for i in range(2)] == [(30, 40), (40, 30)]


def test_texts(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    family.write(tmp_path / "bert")
    spec = family.data(tmp_path)
    shifts = write(spec, tmp_path / "out", ["all:5"])
    row = hs.evaluate([tmp_path / "bert"], data=spec, shift=shifts).report.results[0]
    assert [(s.name, s.severity) for s in row.shift] == [("typos", 5), ("word_dropout", 5)]
    lines = [
        json.loads(line) for line in Path(shifts[1].partition("=")[2]).read_text().splitlines()
    ]
    clean = open_data(spec)
    words = [
        sum(len(text.split()) for text in texts)
        for texts in (
            [line["text"] for line in lines],
            [str(clean.read(i)) for i in range(len(clean))],
        )
    ]
    assert 0.4 * words[1] < words[0] < 0.8 * words[1]


def test_what_can_be_asked_for() -> None:
    assert len(corruptions_of(["all"], "image")) == 75
    wrong = {"foog": "did you mean fog", "fog:9": "no such severity", "typos": "no such corruption"}
    for entry, message in wrong.items():
        with pytest.raises(UsageError, match=message):
            corruptions_of([entry], "image")


def test_what_they_are_named_after() -> None:
    """Mean, spread and share of changed pixels, each against what its definition says."""
    flat = Image.fromarray(np.full((80, 80), 128, np.uint8))

    def of_flat(name: str, severity: int) -> np.ndarray:
        return np.asarray(spoiled(flat, name, severity, np.random.default_rng(0))).astype(float)

    assert of_flat("gaussian_noise", 1).std() == pytest.approx(0.08 * 255, rel=0.05)
    # A Poisson variable: the variance is the mean.
    assert of_flat("shot_noise", 2).std() == pytest.approx(255 * (128 / 255 / 25) ** 0.5, rel=0.05)
    assert (of_flat("impulse_noise", 5) != 128).mean() == pytest.approx(0.27, abs=0.02)
    small = Image.fromarray(np.full((63, 200), 128, np.uint8))  # CIFAR-C's strengths
    noise = np.asarray(spoiled(small, "gaussian_noise", 5, np.random.default_rng(0)))
    assert noise.std() == pytest.approx(25.5, rel=0.05)


def test_alike_in_any_subset_and_on_every_machine() -> None:
    """Of JPEG the library decides."""
    names = [name for name in NAMES["image"] if name != "jpeg_compression"]
    samples = [Corrupted(pictures(1), Corruption(name, 4)) for name in names]
    sums = [int(np.asarray(each.read(0)).astype(int).sum()) for each in samples]
    assert sums == PINNED
    some = limited(pictures(12), 3, seed=1)
    foggy = Corrupted(some, Corruption("fog", 2)).read(1)
    alone = Corrupted(pictures(12), Corruption("fog", 2)).read(int(some.index[1]))
    assert np.array_equal(np.asarray(foggy), np.asarray(alone))


PINNED = [
    299471,
    295380,
    296712,
    297753,
    302383,
    295493,
    296913,
    405553,
    405985,
    289869,
    353119,
    297078,
    296961,
    297669,
]
