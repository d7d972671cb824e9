"""build --ood: each kind of OOD score, on one and several models and on a body, in the table and in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_answers import member
from row_files import write_lines
from tiny_families import TEXT, WORDS, tokenizer, transformers_model

import hydrasurgeon as hs
from hydrasurgeon.building import front
from hydrasurgeon.building.answers import MemberOutputs
from hydrasurgeon.building.choosing import decide
from hydrasurgeon.building.table import BuildObjective, Candidate, CandidateTable, Entry
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.decision import ood_score
from hydrasurgeon.decision.ood_score import evidence_of
from hydrasurgeon.tasks.base import Outputs

KINDS = {"logits": "energy", "features": "mds", "both": "vim"}
"""What an OOD score reads → one that does."""
SOURCES = ("one model", "three models", "a body")


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The OOD score that is the best wherever it can be fitted."""
    wanted: str = request.param

    def best(aurocs: Mapping[str, Sequence[float]]) -> str:
        return wanted if wanted in aurocs else max(aurocs)

    monkeypatch.setattr(ood_score, "best_score", best)
    return wanted


@dataclass(frozen=True)
class Drawn:
    """Answers of linear models to features that are drawn; OOD ones lie in other directions."""

    random: np.random.Generator
    classes: int = 3
    width: int = 8

    def features(self, rows: int, labels: np.ndarray | None = None) -> np.ndarray:
        noise = self.random.normal(size=(rows, self.width))
        if labels is None:
            noise[:, self.classes :] *= 4
        else:
            noise[np.arange(rows), labels] += 3
        return noise

    def table(self, members: int) -> CandidateTable:
        labels = [np.arange(rows) % self.classes for rows in (120, 90)]
        inputs = [*(self.features(len(each), each) for each in labels), self.features(60)]
        weights = [
            np.eye(self.classes, self.width)
            + self.random.normal(0, 0.1, (self.classes, self.width))
            for _ in range(members)
        ]

        def answers(weight: np.ndarray) -> MemberOutputs:
            val, train, foreign = (
                Outputs(np.float32(x @ weight.T)[:, None], np.float32(x)[:, None], y)
                for x, y in zip(inputs, (*labels, None), strict=True)
            )
            linear = ((weight, np.zeros(self.classes)),)
            return MemberOutputs((val, foreign), (*evidence_of(train, linear, 0),), linear)

        by_member = {member(at): answers(weight) for at, weight in enumerate(weights)}
        sure = 2 * np.eye(self.classes)[labels[0]] + self.random.normal(size=(120, self.classes))
        words = [
            np.column_stack([sure, self.random.uniform(0, 1, 120)]),
            np.column_stack([self.random.normal(size=(60, self.classes)), np.full(60, 2.0)]),
        ]
        return CandidateTable(
            BuildObjective("nll"), lambda each, engine: by_member[each], words=lambda: words
        )


@pytest.mark.parametrize("members", [1, 3])
def test_words_change_no_ood_score(kind: str, members: int) -> None:
    """Beside a model, alone, and first where all that is novel to them goes on."""
    table = Drawn(np.random.default_rng(0)).table(members)
    choice = Candidate.of(*(member(at) for at in range(members)))
    plain = table.entry(choice)
    assert plain.score == kind
    for words in ("blend", "alone", "cascade"):
        entry = table.entry(replace(choice, words=words, most_on=0.6))
        assert entry.score == kind
        assert entry.worth["nll"] != plain.worth["nll"]
        if words != "cascade":
            assert entry.worth["auroc"] == plain.worth["auroc"]
            assert entry.worth["fpr95"] == plain.worth["fpr95"]
        else:  # what stops at words lies below all that the model reads
            assert plain.worth["auroc"] <= entry.worth["auroc"] < 1


def write(path: Path, texts: Sequence[str], labels: Sequence[str] | None = None) -> str:
    rows = [{"text": text} for text in texts]
    for row, label in zip(rows, labels or (), strict=False):
        row["label"] = label
    return write_lines(path, rows)


class Place:
    """A body of texts, three fine-tunings of it, TRAIN and VAL, and OOD texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        random = np.random.default_rng(0)

        def labelled(name: str, rows: int) -> str:
            labels = [WORDS[at % 3] for at in range(rows)]
            words = [" ".join(random.choice(WORDS[4:], 6)) for _ in labels]
            seen = [*labels]
            for at in random.permutation(rows)[: rows // 10]:  # so that nobody is always right
                seen[at] = WORDS[(at + 1) % 3]
            pairs = zip(seen, words, strict=True)
            return write(folder / f"{name}.jsonl", [f"{a} {b}" for a, b in pairs], labels)

        self.train, self.val = labelled("train", 90), labelled("val", 80)
        strange = [" ".join(random.choice([*WORDS[:4], "cat", "dog"], 9)) for _ in range(40)]
        self.ood = write(folder / "ood.jsonl", strange)
        transformers_model("BertModel", TEXT).save_pretrained(folder / "body")
        tokenizer(folder / "body")
        probe = folder / "m0.safetensors"
        hs.finetune(folder / "body", recipe="probe", data=self.train, out=probe, device="cpu")
        recipe = {"epochs": "1", "lr": "1e-4"}
        self.models = [probe]
        for seed in (1, 2):
            out = folder / f"m{seed}.safetensors"
            options: dict[str, Any] = {"data": self.train, "set": recipe, "seed": seed}
            hs.finetune(probe, out=out, device="cpu", **options)
            self.models.append(out)

    def build(self, source: str, out: Path, **more: Any) -> Any:
        paths = {
            "one model": self.models[:1],
            "three models": self.models,
            "a body": [self.folder / "body"],
        }
        settings: dict[str, Any] = {"data": self.train, "val": self.val, "ood": [self.ood]}
        settings |= {"objective": "nll", "device": "cpu", "budget": "macs=1,1.5"} | more
        if source == "a body":
            settings |= {"seeds": 2}
        return hs.build(paths[source], out=f"{out}/", **settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("ood"))


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_whatever_score_wins(
    kind: str, source: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words beside a model change no OOD score: its AUROC is the same with and without them."""
    seen: dict[Any, Entry] = {}

    def recorded(entries: Sequence[Entry], unit: str, below: Entry | None) -> Entry:
        seen.update({entry.choice: entry for entry in entries})
        return decide(entries, unit, below)

    monkeypatch.setattr(front, "decide", recorded)
    built = place.build(source, tmp_path / "front")
    by_members: dict[Any, dict[str, Entry]] = {}
    for choice, entry in seen.items():
        by_members.setdefault(choice.members, {})[choice.words] = entry
    pairs = [each for each in by_members.values() if {"off", "blend"} <= each.keys()]
    assert len(pairs) >= (2 if source == "one model" else 4)
    for pair in pairs:
        alone, beside = pair["off"].worth, pair["blend"].worth
        assert alone["auroc"] == beside["auroc"]
        assert alone["fpr95"] == beside["fpr95"]
        assert alone["nll"] != beside["nll"]
    for rung in json.loads((built.path / "front.json").read_text())["rungs"]:
        file = built.path / rung["path"]
        decision = open_checkpoint(file).manifest.decision
        assert decision is not None
        assert decision.ood.score == kind
        (said,) = hs.evaluate(file, data=place.val, ood=[place.ood], device="cpu").report.results
        assert said.id.accuracy == pytest.approx(rung["accuracy"], abs=0.03)
