"""`--corrupt all|NAME[:S]` → which corruptions, at which severities."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean

NAMES = {
    "image": (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    ),
    "text": ("typos", "word_dropout"),
}
"""Kind of data → its corruptions, in ImageNet-C's order."""
SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly seen to hardly told."""
FORM = re.compile(r"([\w-]+)(?::([0-9]{1,9}))?")
"""NAME or NAME:SEVERITY."""


class Corruption(NamedTuple):
    """One way to spoil samples, and how much."""

    name: str
    severity: int


def corruptions_of(
    entries: Iterable[str], kind: Literal["image", "text"], *, option: str = "--corrupt"
) -> tuple[Corruption, ...]:
    """What was asked for, each once: `all` stands for every corruption of this kind of data, no severity for all
    five."""
    wanted: dict[Corruption, None] = {}
    for entry in entries:
        name, severity = _parsed(entry, option)
        if name != "all" and name not in NAMES[kind]:
            raise UsageError(
                f"{option} {entry}: spoils {'texts' if kind == 'image' else 'images'}, the data holds {kind}s",
                hint=_available(kind),
            )
        for each in NAMES[kind] if name == "all" else (name,):
            for strength in SEVERITIES if severity is None else (severity,):
                wanted[Corruption(each, strength)] = None
    return tuple(wanted)


def _parsed(entry: str, option: str) -> tuple[str, int | None]:
    """Name and severity; UsageError for a corruption that there is not."""
    match = FORM.fullmatch(entry)
    name = entry.partition(":")[0]
    names = ["all", *(each for names in NAMES.values() for each in names)]
    if name not in names:
        raise UsageError(
            f"{option} {entry}: no such corruption{did_you_mean(name.lower().replace('-', '_'), names)}",
            hint=f"{_available('image')} {_available('text')}",
        )
    severity = int(match[2]) if match and match[2] else None
    if not match or severity not in (None, *SEVERITIES):
        raise UsageError(f"{option} {entry}: no such severity", hint=f"Severities are 1 to {SEVERITIES[-1]}.")
    return name, severity


def _available(kind: str) -> str:
    return f"For {kind}s there are all, {', '.join(NAMES[kind])}."
