"""examples/paper/corrupt.py: the sets that it writes are what `eval --shift` reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corrupt import Corrupted, Corruption, spoiled, write
from PIL import Image

import hydrasurgeon as hs
from hydrasurgeon.data import open_data


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
