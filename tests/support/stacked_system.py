"""Reference for repairs: their inputs, and their problem solved as one stacked system."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data


def inputs_of(path: Path, spec: str) -> Tensor:
    samples = open_data(spec)
    (batch,) = Batches(samples, hs.load(path).transform, batch_size=len(samples))
    return batch.inputs.double()


def weighted_ridge(
    x: np.ndarray, t: np.ndarray, s: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the docstring's problem as one stacked system by numpy.linalg.lstsq."""
    width = x.shape[1]
    centred = x - (s @ x) / s.sum()
    strength = 1e-3 * np.trace((s[:, None] * centred).T @ centred) / width
    root = np.sqrt(s)[:, None]
    top = np.hstack([root * x, root])
    bottom = np.hstack([np.sqrt(strength) * np.eye(width), np.zeros((width, 1))])
    right = np.vstack([root * t, np.sqrt(strength) * before.T])
    solution = np.linalg.lstsq(np.vstack([top, bottom]), right, rcond=None)[0]
    return solution[:-1].T, solution[-1]
