"""Samples that are worth a look: the surest mistakes, the most unfamiliar and the least sure, as
small pictures or cut texts.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray
from PIL import Image

from hydrasurgeon.data.images import turned
from hydrasurgeon.errors import DataError
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.report.columns import short
from hydrasurgeon.statistics.probabilities import falling

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples

EACH = 8
"""Samples of one kind."""
SIDE, EXACT = 112, 64
"""The longer side of a thumbnail; pictures of at most 64 pixels stay as they are."""
LETTERS, NAMED = 280, 32
"""Characters of a text, and of a sample's name."""


@dataclass(frozen=True)
class Example:
    """One sample, and what a model says of it."""

    name: str
    truth: str
    answer: str
    confidence: str
    correct: bool
    more: str
    """Its OOD score, where there is one, and whether it is flagged."""
    picture: str
    """As a data URL; empty for a text."""
    text: str
    """Plain, or as `Markup`."""


@dataclass(frozen=True)
class Examples:
    """Samples of one kind."""

    kind: str
    samples: tuple[Example, ...]


def examples_of(row: Answered, samples: Samples, names: Sequence[str]) -> tuple[Examples, ...]:
    """Of a model that answered for all samples that can be read, some of each kind."""
    places = read_places(samples, len(row.choices.labels))
    groups = []
    for kind, order in _orders(row).items():
        made = tuple(_example(row, i, samples, places[i], names) for i in order[:EACH].tolist())
        if made:
            groups.append(Examples(kind, made))
    return tuple(groups)


def _orders(row: Answered) -> dict[str, ndarray]:
    """Samples by how much they are worth a look, of each kind."""
    confidence, wrong = row.choices.confidence, np.flatnonzero(~row.choices.correct)
    orders = {"surest mistakes": wrong[falling(confidence[wrong])]}
    # By msp the most unfamiliar are the least sure.
    if row.scores and row.used != "msp":
        orders[f"most unfamiliar, by {row.used}"] = falling(row.scores[row.used])
    return {**orders, "least sure": np.argsort(confidence, kind="stable")}


def _example(row: Answered, i: int, samples: Samples, place: int, names: Sequence[str]) -> Example:
    inside, called = row.choices, samples.name(place)
    truth, answer = (
        names[at] if at < len(names) else str(at)
        for at in (int(inside.labels[i]), int(inside.predicted[i]))
    )
    more = ""
    if row.scores:
        score = float(row.scores[row.used][i])
        flagged = ", flagged" if row.threshold is not None and score > row.threshold else ""
        more = f"OOD {score:.3g}{flagged}"
    picture, text = _shown(samples.read(place))
    return Example(
        name=short(called if isinstance(called, str) else f"sample {called}", NAMED),
        truth=truth,
        answer=answer,
        confidence=f"{100 * float(inside.confidence[i]):.1f} %",
        correct=bool(inside.correct[i]),
        more=more,
        picture=picture,
        text=text,
    )


def read_places(samples: Samples, answered: int) -> Sequence[int]:
    """Where the samples stand that were answered: those that can be read."""
    if answered == len(samples):
        return range(answered)
    return [i for i in range(len(samples)) if _is_read(samples, i)]


def _is_read(samples: Samples, i: int) -> bool:
    try:
        samples.read(i)
    except DataError:
        return False
    return True


def _shown(sample: Any) -> tuple[str, str]:
    """The picture and the text of a sample, of which it may lack one."""
    parts = sample if isinstance(sample, tuple) else (sample,)
    pictures = [thumbnail(part) for part in parts if isinstance(part, Image.Image)]
    text = " · ".join(" ".join(part.split()) for part in parts if isinstance(part, str))
    return "".join(pictures[:1]), text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def thumbnail(image: Image.Image) -> str:
    """A small, upright copy as a data URL: pixels alone, without what a camera wrote beside them."""
    small = turned(image)
    exact = max(small.size) <= EXACT
    if not exact:
        small.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    kind, options = ("png", {"optimize": True}) if exact else ("jpeg", {"quality": 80})
    Image.fromarray(np.asarray(small)).save(content, kind, **options)
    return f"data:image/{kind};base64,{b64encode(content.getvalue()).decode()}"
