"""Samples, each corrupted or perturbed as it is read.

What is random follows from the seed, the corruption's name and the sample's own content, never from
its place: the same sample is corrupted alike in any batch, worker, subset or order, and at every
severity by the same draws.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from hydrasurgeon.data.corruptions.pictures import LARGE, Random, spoiled
from hydrasurgeon.data.samples import Decoded, Samples, Subset
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.lookup import did_you_mean

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
    """What was asked for, each once: `all` stands for every corruption of this kind of data, no
    severity for all five.
    """
    wanted: dict[Corruption, None] = {}
    names = ("all", *NAMES[kind])
    for entry in entries:
        match, name = FORM.fullmatch(entry), entry.partition(":")[0]
        severity = int(match[2]) if match and match[2] else None
        if name not in names:
            raise UsageError(
                (
                    f"{option} {entry}: no such corruption of "
                    f"{kind}s{did_you_mean(name.lower().replace('-', '_'), names)}"
                ),
                hint=f"There are {', '.join(names)}.",
            )
        if not match or severity not in (None, *SEVERITIES):
            raise UsageError(
                f"{option} {entry}: no such severity", hint=f"Severities are 1 to {SEVERITIES[-1]}."
            )
        for each in NAMES[kind] if name == "all" else (name,):
            for strength in SEVERITIES if severity is None else (severity,):
                wanted[Corruption(each, strength)] = None
    return tuple(wanted)


TILES = 3
"""Tiles along each side of a perturbed image."""
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
"""Rows of a keyboard: a typo hits the neighbouring letter."""
BESIDE = {
    key: row[max(0, at - 1) : at] + row[at + 1 : at + 2]
    for row in ROWS
    for at, key in enumerate(row)
}
"""Letter → the keys beside it."""


class Corrupted(Subset):
    """Every sample of another set, corrupted by one of several corruptions in turn; its labels
    stay.
    """

    def __init__(self, parent: Samples, *corruptions: Corruption, seed: int = 0) -> None:
        if parent.kind == "pair":
            raise DataError(
                f"{parent.spec}: holds images with texts", hint="Corruptions change one of the two."
            )
        kinds = [f"{each.name}:{each.severity}" for each in corruptions]
        shown = kinds[0] if len(kinds) == 1 else f"{len(kinds)} corruptions of it"
        super().__init__(parent, parent.written)
        self.spec, self.corruptions, self.seed = f"{parent.spec}, {shown}", corruptions, seed

    def read(self, i: int) -> Decoded:
        raw = self.parent.read(i)
        name, severity = self.corruptions[i % len(self.corruptions)]
        if isinstance(raw, str):
            return scribbled(raw, name, severity, _random(self.seed, name, raw.encode()))
        if isinstance(raw, tuple):
            random = _random(self.seed, name, self.parent.content(i))
            first, second = (scribbled(str(text), name, severity, random) for text in raw)
            return first, second
        assert isinstance(raw, Image.Image), "pairs are refused above"
        content = f"{raw.mode} {raw.size}".encode() + raw.tobytes()
        return spoiled(raw, name, severity, _random(self.seed, name, content))

    def content(self, i: int) -> bytes:
        name, severity = self.corruptions[i % len(self.corruptions)]
        return f"{name}:{severity}:{self.seed}:".encode() + self.parent.content(i)

    def fingerprint(self) -> dict[str, Any]:
        """The parent's, joined with what is done to it: seventy-five kinds of one set read it once."""
        about = self._parents
        made = f"{self.corruptions} {self.seed} {about['sha256']}".encode()
        return {"spec": self.spec, "rows": len(self), "sha256": hashlib.sha256(made).hexdigest()}

    @cached_property
    def _parents(self) -> dict[str, Any]:
        return self.parent.fingerprint()


def _random(seed: int, name: str, content: bytes) -> np.random.Generator:
    """Random numbers of one sample under one corruption."""
    digest = hashlib.sha256(f"{seed} {name} ".encode() + content).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def scribbled(text: str, name: str, severity: int, random: Random) -> str:
    """A text corrupted: `typos` or `word_dropout`."""
    chance = TEXT[name][severity - 1]
    return _mistyped(text, chance, random) if name == "typos" else _shortened(text, chance, random)


def _mistyped(text: str, chance: float, random: Random) -> str:
    """Letters left out, doubled, swapped with the next, or hit beside; each draw is made whether it
    is used or not.
    """
    chances, kinds, picks = (
        random.random(len(text)),
        random.integers(4, size=len(text)),
        random.random(len(text)),
    )
    typed: list[str] = []
    swapped = False
    for at, letter in enumerate(text):
        if swapped:
            swapped = False
            continue
        following = text[at + 1 : at + 2]
        if chances[at] >= chance or not letter.isalpha():
            typed.append(letter)
        elif kinds[at] == 0:
            continue
        elif kinds[at] == 1:
            typed.append(2 * letter)
        elif kinds[at] == 2 and following.isalpha():
            typed.append(following + letter)
            swapped = True
        else:
            near = BESIDE.get(letter.lower(), letter.lower())
            key = near[int(picks[at] * len(near))]
            typed.append(key.upper() if letter.isupper() else key)
    return "".join(typed)


def _shortened(text: str, chance: float, random: Random) -> str:
    """At least one word stays."""
    words = text.split()
    if not words:
        return text
    draws = random.random(len(words))
    stays = [word for word, draw in zip(words, draws, strict=True) if draw >= chance]
    return " ".join(stays or [words[int(draws.argmax())]])


class Perturbed(Subset):
    """Every sample of another set, perturbed on purpose: what OOD data might look like; without
    labels.

    Images are cut into tiles that change places, texts are put together from words of all samples.
    """

    def __init__(self, parent: Samples, seed: int = 0) -> None:
        super().__init__(parent, None)
        self.spec, self.seed = f"{parent.spec}, perturbed", seed

    def read(self, i: int) -> Decoded:
        random = np.random.default_rng((self.seed, i))
        raw = self.parent.read(i)
        if isinstance(raw, str):
            return self._salad(raw, random)
        if self.kind == "text" and isinstance(raw, tuple):
            return self._salad(str(raw[0]), random), self._salad(raw[1], random)
        if isinstance(raw, Image.Image):
            return _shuffled(raw, random)
        return raw

    def _salad(self, text: str, random: np.random.Generator) -> str:
        """As many words, each from a sample drawn at random."""
        words = []
        for _ in text.split():
            at = int(random.integers(len(self.parent)))
            try:
                choice = _words(self.parent.read(at))
            except DataError:  # of a row without text, which --skip-bad leaves out
                choice = _words(text)
            words += [choice[int(random.integers(len(choice)))]] if choice else []
        return " ".join(words)


def _words(sample: Decoded) -> list[str]:
    """All words of a text, or of a pair of them."""
    texts = sample if isinstance(sample, tuple) else (sample,)
    return [word for text in texts if isinstance(text, str) for word in text.split()]


def _shuffled(image: Image.Image, random: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image)
    rows, columns = (np.linspace(0, size, TILES + 1).astype(int) for size in pixels.shape[:2])
    height, width = np.diff(rows).min(), np.diff(columns).min()
    if not height or not width:
        return image
    places = [(int(r), int(c)) for r in rows[:-1] for c in columns[:-1]]
    spoiled = pixels.copy()
    for (r, c), at in zip(places, random.permutation(len(places)), strict=True):
        top, left = places[int(at)]
        spoiled[r : r + height, c : c + width] = pixels[top : top + height, left : left + width]
    made = Image.fromarray(spoiled)
    if image.mode == "P":
        made.putpalette(image.getpalette() or [])
    return made
