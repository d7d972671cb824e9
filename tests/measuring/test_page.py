"""eval --html, --markdown: one file that holds all it shows, says what is better, takes names for names, and shows
classes and types of entities as loops count them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.measuring.predictions import Predictions, write_predictions
from hydrasurgeon.report.classes import class_tables
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tasks.entity_answers import JudgedTokens

NASTY = "</title><script>alert(1)</script><b>&\"'|`_%$\\{x}"
VOID = {"meta", "link", "br", "img", "line", "rect", "circle", "path", "input"}


def write(path: Path, sharpness: float, *, name: str, cost: float = 0, **changes: Any) -> Path:
    """Someone's predictions; the sharper, the better."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    logits = torch.randn(200, 2, 4, generator=generator)
    logits[torch.arange(200), :, labels] += sharpness
    foreign = torch.randn(90, 2, 4, generator=generator)
    tensors = {
        "logits": logits,
        "labels": labels,
        "ood.near <$set$>.logits": foreign,
        "ood.far.logits": foreign / 2,
    }
    tensors |= {
        f"shift.fog.{s}.{what}": t
        for s in (1, 5)
        for what, t in (("logits", logits / s), ("labels", labels))
    }
    about = {
        "name": name,
        "kind": "hydra",
        "ood": [["near <$set$>", "near"], ["far", "far"]],
        "shift": [["fog", 1], ["fog", 5]],
        "cost": {"params": int(1e6 * sharpness), "macs": int(1e7 * (cost or sharpness))},
    }
    save_file(
        {k: v.clone() for k, v in {**tensors, **changes}.items()},
        path,
        metadata={"hydrasurgeon.predictions": json.dumps(about)},
    )
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write(tmp_path / "a.safetensors", 1.5, name="base"),
        write(tmp_path / "b.safetensors", 3.0, name=NASTY),
        write(tmp_path / "c.safetensors", 1.0, name="weak"),
    ]


class Page(HTMLParser):
    """The elements of a page, which must be closed as they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.stack[-1] if self.stack else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def said(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def page(files: list[Path], path: Path, **options: Any) -> tuple[Page, str]:
    hs.evaluate([], predictions_in=files, html=path, **options)
    text = path.read_text(encoding="utf-8")
    return Page(text), text


def test_one_file_that_asks_for_nothing(files: list[Path], tmp_path: Path) -> None:
    parsed, text = page(files, tmp_path / "r.html")
    assert len(text) < 1_000_000
    assert not [
        a for _, attributes in parsed.tags for a in attributes if a == "style" or a.startswith("on")
    ]
    sources = [str(picture["src"]) for picture in parsed.all("img")]
    assert len(sources) == 7
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    for source in sources:
        drawn = ElementTree.fromstring(base64.b64decode(source.partition(",")[2]))
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    # Each says what it shows, for who cannot see it.
    said = [str(picture["alt"]) for picture in parsed.all("img")]
    assert min(map(len, said)) > 20
    assert any(text.startswith("Area under the curve: base 0.") for text in said)
    assert all(a["href"].startswith("#") for a in parsed.all("a"))
    assert "http" not in re.sub(r'http-equiv="Content', "", text)
    # The policy names this style and this script, by their hashes.
    (policy,) = [m["content"] for m in parsed.all("meta") if m.get("http-equiv")]
    for tag in ("style", "script"):
        (content,) = parsed.said(tag)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")


def test_names_are_text(files: list[Path], tmp_path: Path) -> None:
    parsed, _ = page(files, tmp_path / "r.html")
    assert len(parsed.all("script")) == 1
    assert not parsed.all("b")
    assert NASTY in " ".join(parsed.said("h2"))
    assert any(NASTY in str(picture["alt"]) for picture in parsed.all("img"))


def badges(parsed: Page) -> list[str]:
    classes = [str(span.get("class")) for span in parsed.all("span")]
    return [each.removeprefix("badge ") for each in classes if each.startswith("badge")]


@pytest.mark.slow
def test_what_differs_comes_first(files: list[Path], tmp_path: Path) -> None:
    parsed, _ = page(files, tmp_path / "r.html")
    heading = "".join(parsed.said("h1"))
    worse = "worse in Acc, Brier, NLL, AUROC and FPR95 at 0.67 × the cost"
    more = f"better at 2.00 × the cost; weak is better in ECE but {worse}"
    assert heading == f"Compared with base: {NASTY} is {more}."
    assert "Of 12 intervals about 0.6 exclude 0 by chance alone." in "".join(parsed.said("p"))
    assert badges(parsed) == ["reference", "better", "mixed"]
    turned, _ = page(files, tmp_path / "w.html", reference="weak")
    assert "base is better in Acc, Brier, NLL, AUROC and FPR95 but" in "".join(turned.said("h1"))
    # What is cheaper and no worse comes first.
    thrifty = write(tmp_path / "d.safetensors", 1.5, name="thrifty", cost=0.6)
    bought, _ = page([*files, thrifty], tmp_path / "d.html")
    first = "Compared with base: thrifty is not distinguishable at 0.40 × the cost; "
    assert "".join(bought.said("h1")).startswith(first)
    alone, _ = page(files[:1], tmp_path / "one.html")
    assert "base" in "".join(alone.said("h1"))


def few(path: Path, rows: int, sharpness: float, foreign: int, name: str) -> Path:
    """Predictions for the first samples only."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(rows) % 4
    logits = torch.randn(rows, 1, 4, generator=generator)
    logits[torch.arange(rows), :, labels] += sharpness
    outside = torch.randn(foreign, 1, 4, generator=generator) / sharpness
    save_file(
        {"logits": logits, "labels": labels, "ood.far.logits": outside},
        path,
        metadata={"hydrasurgeon.predictions": json.dumps({"name": name, "kind": "member"})},
    )
    return path


@pytest.mark.slow
def test_a_few_samples_decide_nothing(tmp_path: Path) -> None:
    # Every resample of one sample is that sample: the interval would be a point, and anything a difference.
    for rows in (1, 19):
        pair = [
            few(tmp_path / f"{name}{rows}.safetensors", rows, sharp, 30, name)
            for name, sharp in (("a", 1.0), ("b", 9.0))
        ]
        parsed, text = page(pair, tmp_path / f"{rows}.html")
        assert "b is not compared" in "".join(parsed.said("h1"))
        assert "<caption>Differences" not in text
    assert "on 19 labelled samples, with 1 OOD set of 30 samples" in text
    # Nor do a few OOD samples decide who detects them.
    pair = [
        few(tmp_path / f"{name}.safetensors", 40, sharp, 3, name)
        for name, sharp in (("a", 1.0), ("b", 9.0))
    ]
    parsed, text = page(pair, tmp_path / "foreign.html")
    assert badges(parsed) == ["reference", "better"]
    table = text.partition("<caption>Differences")[2].partition("</table>")[0]
    assert "accuracy" in table
    assert "AUROC" not in table


def test_markdown(files: list[Path], tmp_path: Path) -> None:
    hs.evaluate([], predictions_in=files, markdown=tmp_path / "r.md", ci=0.9)
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert text.startswith("- reference: `base`\n- better: `")
    legend = "Bold is the best number of a column, underlined the second best."
    assert legend in text
    differences, _, rest = text.partition("### Differences")[2].partition("### ")
    assert re.search(r"\| \+0\.\d+ \[\+0\.\d+, \+0\.\d+\] better \|", differences)
    assert " worse |" in differences
    assert not re.search(r"\*\*|<u>", differences)
    bold = re.findall(r"\*\*([\d.]+)\*\*", rest)
    best = hs.evaluate([], predictions_in=files).report.results[1].id
    assert bold[:2] == [f"{best.accuracy:.3f}", f"{best.brier:.3f}"]
    assert "### Differences\n\n|  | accuracy ↑ | Brier ↓ | NLL ↓ | ECE ↓ |" in text
    assert "### In distribution\n\n|  | accuracy ↑ | Brier ↓ |" in text
    assert r"near \<\$set\$\> (near): AUROC" in text  # dollars would be read as mathematics
    for table in text.split("### ")[2:]:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        # A bar in a name is none of the table's.
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert len(lines) == 5


def predictions(
    path: Path, *, classes: int = 5, rows: int = 203, noise: float = 1.0, name: str = "model"
) -> Path:
    """Answers of which some are wrong, for classes of different sizes; class 1 has no sample."""
    random = torch.Generator().manual_seed(classes)
    labels = (torch.rand(rows, generator=random).numpy() ** 2 * classes).astype(np.int64)
    labels[labels == 1] = 0
    logits = noise * torch.randn(rows, 2, classes, generator=random).numpy()
    logits[np.arange(rows), :, labels] += 2.0
    write_predictions(Predictions(name, "hydra", Outputs(logits, None, labels)), path)
    return path


def answers(path: Path) -> list[tuple[int, int]]:
    """(class, answer) of each sample, one by one."""
    from hydrasurgeon.measuring.predictions import read_predictions

    read = read_predictions(path).outputs
    mean = softmax(read.logits).mean(axis=1)
    return [
        (int(label), max(range(len(p)), key=p.tolist().__getitem__))
        for label, p in zip(read.truth, mean, strict=True)
    ]


def table(text: str, title: str) -> list[list[str]]:
    """The rows of a table of a page."""
    body = text.partition(f"<caption>{title}")[2]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body.partition("</table>")[0])
    return [[name, *re.findall(r"<td[^>]*>(?:<u>)?([^<]*)", cells)] for name, cells in rows]


def test_classes_are_those_of_a_loop(tmp_path: Path) -> None:
    paths = [predictions(tmp_path / f"{n}.safetensors", noise=n, name=f"m{n}") for n in (1.0, 2.0)]
    hs.evaluate([], predictions_in=paths, html=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    both = [answers(path) for path in paths]
    assert [pair[0] for pair in both[0]] == [pair[0] for pair in both[1]]
    rows = table(text, "By class")
    accuracies = []
    for name, count, *by_model in rows:
        of_class = [[taken for true, taken in each if true == int(name)] for each in both]
        assert int(count) == len(of_class[0])
        for value, each in zip(by_model, of_class, strict=True):
            assert float(value) == pytest.approx(each.count(int(name)) / len(each), abs=6e-4)
        accuracies.append(float(by_model[0]))
    assert {int(row[0]) for row in rows} == {true for true, _ in both[0]} == {0, 2, 3, 4}
    assert accuracies == sorted(accuracies)


NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LABELS = [[1, 2, 0, 3], [1, 2, 0, 0], [3, 0, 1, 2], [0, 1, -1, -1]]
TAGS = [[1, 2, 0, 3], [1, 0, 0, 3], [1, 0, 3, 0], [0, 0, -1, -1]]
CHANCES = [[0.99, 0, 0, 0.3], [0.6, 0, 0, 0.9], [0.8, 0, 0.7, 0], [0, 0, 0, 0]]


def judged(tags: list[list[int]]) -> JudgedTokens:
    nothing = np.zeros((4, 4))
    return JudgedTokens(
        labels=np.array(LABELS),
        tags=np.array(tags),
        right=np.array(tags) == np.array(LABELS),
        chances=np.array(CHANCES),
        confidence=nothing,
        nll=nothing,
        mutual_information=nothing,
        disagreement=nothing,
    )


def test_types_of_entities_are_counted_by_hand() -> None:
    rows = [(0, "one", Answered(judged(TAGS))), (1, "right", Answered(judged(LABELS)))]
    (types,) = class_tables(rows, 0, NAMES)
    found = dict(zip(types.names, types.rows, strict=True))
    assert list(found) == ["PER", "LOC"]  # the worst first
    assert [float(cell.text) for cell in found["PER"]] == pytest.approx(
        [4, 1 / 3, 1 / 4, 2 / 7, 1, 1, 1], abs=6e-4
    )
    assert [float(cell.text) for cell in found["LOC"]] == pytest.approx(
        [2, 1 / 3, 1 / 2, 2 / 5, 1, 1, 1], abs=6e-4
    )
    sure, right = judged(TAGS).sure()
    assert sure.tolist() == pytest.approx([0.99, 0.3, 0.6, 0.9, 0.8, 0.7])
    assert right.tolist() == [True, True, False, False, False, False]
