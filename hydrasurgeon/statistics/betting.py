"""An e-process against "at most this fraction of the rows": what bets on a larger one have won.

Where x of n rows are counted, a bet on a rate q above the limit m is multiplied by

    L = (q / m)^x · ((1 − q) / (1 − m))^(n − x)

which is 1 or less on average as long as the rate is at most m, however many looks are taken. Money
lies on a ladder of rates alike, and 1 / (t (t + 1)) of it is kept until look t, so that what goes
wrong late shows as fast:

    S_t = (S_{t−1} + 1 / (t (t + 1))) · L_t          E_t = mean over the ladder of S_t + 1 / (t + 1)

P(E_t ≥ 1/α at any t) ≤ α by Ville's inequality (Ramdas et al., Statistical Science 2023).
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Float, Int

ODDS = 1 + 2.0 ** np.arange(-4, 13)
"""Ladder of bets, as multiples of the limit's odds."""


def log_wealth(
    counted: Int[ndarray, "look stream"],
    rows: Int[ndarray, "look stream"],
    limits: Float[ndarray, " stream"],
) -> Float[ndarray, " look"]:
    """Return ln E after each look, with money spread evenly over all streams."""
    odds = limits / (1 - limits) * ODDS[:, None]
    win = np.log(odds / (1 + odds) / limits)
    lose = -np.log1p(odds) - np.log1p(-limits)
    bets, path = np.full_like(odds, -np.inf), np.empty(len(rows))
    for look, (hits, n) in enumerate(zip(counted, rows, strict=True)):
        new_bets = np.logaddexp(bets, -np.log((look + 1) * (look + 2)))
        bets = new_bets + hits * win + (n - hits) * lose
        path[look] = np.logaddexp(
            np.logaddexp.reduce(bets, axis=None) - np.log(bets.size), -np.log(look + 2)
        )
    return path
