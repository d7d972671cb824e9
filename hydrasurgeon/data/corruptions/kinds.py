"""`--corrupt all|NAME[:S]` → which corruptions, at which severities; and how strong each of them is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean

SMALL_BELOW = 64
"""Images whose shorter side has fewer pixels take CIFAR-C's numbers, which were made for 32; others ImageNet-C's."""

LARGE: dict[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": (25, 18, 15, 10, 7),
}
"""Name → its constants at each severity; what they are stands where they are used."""

SMALL: dict[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
}
"""The same for small images."""

TEXT = {"typos": (0.01, 0.02, 0.04, 0.07, 0.1), "word_dropout": (0.05, 0.1, 0.2, 0.3, 0.4)}
"""For texts: the chance of each letter to be mistyped, of each word to be left out."""
NAMES = {"image": tuple(LARGE), "text": tuple(TEXT)}
"""Kind of data → its corruptions, in ImageNet-C's order."""
SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly seen to hardly told."""
FORM = re.compile(r"([\w-]+)(?::([0-9]{1,9}))?")
"""NAME or NAME:SEVERITY."""


class Corruption(NamedTuple):
    """One way to corrupt samples, and how much."""

    name: str
    severity: int


def corruptions_of(
    entries: Iterable[str], kind: Literal["image", "text"], *, option: str = "--corrupt"
) -> tuple[Corruption, ...]:
    """What was asked for, each once: `all` stands for every corruption of this kind of data, no severity for all
    five."""
    wanted: dict[Corruption, None] = {}
    names = ("all", *NAMES[kind])
    for entry in entries:
        match, name = FORM.fullmatch(entry), entry.partition(":")[0]
        severity = int(match[2]) if match and match[2] else None
        if name not in names:
            raise UsageError(
                f"{option} {entry}: no such corruption of {kind}s{did_you_mean(name.lower().replace('-', '_'), names)}",
                hint=f"There are {', '.join(names)}.",
            )
        if not match or severity not in (None, *SEVERITIES):
            raise UsageError(f"{option} {entry}: no such severity", hint=f"Severities are 1 to {SEVERITIES[-1]}.")
        for each in NAMES[kind] if name == "all" else (name,):
            for strength in SEVERITIES if severity is None else (severity,):
                wanted[Corruption(each, strength)] = None
    return tuple(wanted)
