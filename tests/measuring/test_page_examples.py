"""The report's examples: which samples, in what order, of what size; nothing of them where they are not wanted; and
what is hostile in a text or a name is text."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.report.examples import EACH, EXACT, LETTERS, SIDE, examples_of, thumbnail

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)> &amp; \u202e"


def row(
    confidence: np.ndarray, predicted: list[int], labels: list[int], scores: np.ndarray | None
) -> Answered:
    nothing = np.zeros(len(labels))
    truth, answer = np.array(labels), np.array(predicted)
    inside = JudgedClasses(
        labels=truth,
        confidence=confidence,
        predicted=answer,
        correct=answer == truth,
        brier=nothing,
        nll=nothing,
        mutual_information=nothing,
        disagreement=nothing,
    )
    return Answered(
        inside,
        {} if scores is None else {"maha++": scores},
        threshold=None if scores is None else 2.5,
    )


class Texts:
    """Samples that are their own numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def name(self, i: int) -> int:
        return i

    def read(self, i: int) -> str:
        if i == 1:
            from hydrasurgeon.errors import DataError

            raise DataError("damaged")
        return f"text {i}"


def test_each_kind_has_its_order() -> None:
    confidence = np.array([0.9, 0.6, 0.6, 0.95, 0.3])
    answered = row(
        confidence, [1, 1, 0, 1, 0], [0, 0, 0, 1, 1], np.array([1.0, 3.0, 2.0, 0.0, 3.0])
    )
    samples: Any = Texts(6)  # one of which cannot be read, so that all behind it move up
    made = {group.kind: group.samples for group in examples_of(answered, samples, ["cat"])}
    assert {kind: [each.text for each in group] for kind, group in made.items()} == {
        "surest mistakes": ["text 0", "text 2", "text 5"],
        "most unfamiliar, by maha++": ["text 2", "text 5", "text 3", "text 0", "text 4"],
        "least sure": ["text 5", "text 2", "text 3", "text 0", "text 4"],
    }
    first = made["surest mistakes"][0]
    assert (first.name, first.truth, first.answer, first.confidence) == (
        "sample 0",
        "cat",
        "1",
        "90.0 %",
    )
    assert [each.more for each in made["most unfamiliar, by maha++"][1:3]] == [
        "OOD 3, flagged",
        "OOD 2",
    ]
    assert [each.correct for each in made["least sure"]] == [False, False, True, False, True]


def test_a_thumbnail_is_pixels_alone(tmp_path: Path) -> None:
    large = Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (300, 600, 3), dtype=np.uint8)
    )
    large.info.update(comment=b"where it was taken", exif=b"Exif\0\0GPS", icc_profile=b"profile")
    for image, kind in ((large, "jpeg"), (large.resize((EXACT, 5)), "png")):
        image.info.update(large.info)
        url = thumbnail(image)
        assert url.startswith(f"data:image/{kind};base64,")
        content = base64.b64decode(url.partition(",")[2])
        assert not any(secret in content for secret in (b"taken", b"GPS", b"profile"))
        small = Image.open(io.BytesIO(content))
        assert small.size == ((SIDE, SIDE // 2) if kind == "jpeg" else (EXACT, 5))
        if kind == "png":
            assert np.array_equal(np.asarray(small), np.asarray(image))
    assert len(url) < 12_000


def test_pictures_on_the_page(
    tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path
) -> None:
    source, data = tiny(), images(rows=90)
    other = hs.prune(source, method="random", keep=1, out=tmp_path / "other.safetensors").path
    ood = [f"far:noise={images('noise.npz', seed=4)}"]
    third = hs.prune(source, method="random", keep=2, out=tmp_path / "third.safetensors").path
    hs.evaluate(
        [source, other, third], data=data, ood=ood, ood_score="energy", html=tmp_path / "r.html"
    )
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    pictures = re.findall('<img src="data:image/png;base64,([^"]*)"', text)
    assert 10 < len(pictures) <= 3 * EACH  # of the reference alone
    assert text.count("Most unfamiliar, by energy") == 1
    stored = np.load(data)["images"]
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in pictures]
    numbers = [int(each) for each in re.findall('alt="sample ([0-9]+)"', text)]
    assert all(
        np.array_equal(picture, stored[at]) for picture, at in zip(shown, numbers, strict=True)
    )
    hs.evaluate(
        [source, other, third], data=data, ood=ood, ood_score="energy", html=tmp_path / "s.html"
    )
    assert (tmp_path / "s.html").read_text(encoding="utf-8") == text
    hs.evaluate([source], data=data, html=tmp_path / "none.html", no_examples=True)
    bare = (tmp_path / "none.html").read_text(encoding="utf-8")
    assert "data:image/png" not in bare
    assert "Surest mistakes" not in bare


def test_texts_are_cut_and_mean_nothing(tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    bert.mkdir()
    FAMILIES["BERT"].write(bert)
    secret = "a word that is nowhere else"
    lines = ["text,label", *(f'"{secret} {NASTY} {"long " * 200}{i}",{i % 2}' for i in range(12))]
    data = tmp_path / "data.csv"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    hs.evaluate([bert], data=str(data), html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    quotes = re.findall("<blockquote>(.*?)</blockquote>", text)
    assert quotes
    assert len(re.findall("<script", text)) == 1
    assert "<img src=x" not in text
    for quote in quotes:
        shown = html.unescape(quote)
        assert shown.startswith(f"{secret} {NASTY}".replace("\u202e", "\\u202e")[:-1])
        assert shown.endswith("…")
        assert len(shown) <= LETTERS + len("u202e")
    hs.evaluate([bert], data=str(data), html=tmp_path / "none.html", no_examples=True)
    assert secret not in (tmp_path / "none.html").read_text(encoding="utf-8")
