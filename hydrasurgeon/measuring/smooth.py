"""SmoothECE (Błasiok, Nakkiran, ICLR 2024): the calibration error without bins.

    smECE_σ = ∫ |Σ_i K_σ(t, f_i) (f_i − y_i)| dt / ∫ Σ_i K_σ(t, f_i) dt        K_σ: Gaussian, reflected at 0 and 1

at the smallest bandwidth σ with smECE_σ ≤ σ. Discretised as its authors' package does it: samples are spread over the
two
nearest points of a grid, the grid is convolved, and the integral is taken over 200 points or more.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float
from torch import Tensor

Array = npt.NDArray[np.float64]

# Points of the integral, and of the grid, for wide kernels; narrow ones need 10 and 20 to a bandwidth.
POINTS, GRID = 200, 2000
# Bandwidths below this are not looked for.
NARROWEST = 0.001
# What keeps a density from being 0.
FLOOR = 0.0001
HALVINGS = 10
"""Of the range that holds the bandwidth: 2⁻¹⁰ is about the narrowest."""


def smooth_ece(confidence: Float[Tensor, " sample"], correct: Bool[Tensor, " sample"]) -> float:
    f = confidence.double().numpy()
    gap = f - correct.double().numpy()

    def wide_enough(sigma: float) -> bool:
        return sigma < NARROWEST or sigma < _at(f, gap, sigma)

    sigma, low = 1.0, 0.0
    if wide_enough(sigma):
        return _at(f, gap, sigma)
    high = 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if wide_enough(middle):
            low = middle
        else:
            high = middle
    return _at(f, gap, high)


def _at(f: Array, gap: Array, sigma: float) -> float:
    points = np.linspace(0, 1, max(POINTS, round(10 / sigma)))
    size = max(GRID, round(20 / sigma)) // 2 + 1
    error = np.interp(points, np.linspace(0, 1, size), _smoothed(f, gap, sigma, size))
    density = np.interp(points, np.linspace(0, 1, size), _smoothed(f, np.ones_like(gap), sigma, size)) + FLOOR
    return float(np.abs(error).sum() / density.sum())


def _smoothed(f: Array, values: Array, sigma: float, size: int) -> Array:
    """Σ_i K_σ(t, f_i) v_i at the points t of a grid over [0, 1]."""
    place = f * (size - 1)
    left = np.clip(place.astype(np.int64), 0, size - 2)
    share = place - left
    grid = np.bincount(left, (1 - share) * values, size) + np.bincount(left + 1, share * values, size)
    around = np.linspace(0, 1, size) - 0.5
    kernel = np.exp(-(around**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    mirrored = np.concatenate([grid[:0:-1], grid, grid[-2::-1]])
    return _convolved(mirrored, kernel)[size // 2 : size // 2 + size]


def _convolved(values: Array, kernel: Array) -> Array:
    """Where the kernel lies wholly within the values; by FFT."""
    length = len(values) + len(kernel) - 1
    padded = 1 << (length - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(values, padded) * np.fft.rfft(kernel, padded), padded)
    return np.asarray(product[len(kernel) - 1 : len(values)])
