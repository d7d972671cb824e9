"""eval --card: a directory's model card holds its own figures, for people and for the hub, and nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.card import BEGIN, END
from hydrasurgeon.checkpoints.decided_words import decision_lines
from hydrasurgeon.checkpoints.reading import open_checkpoint

SPEC = Callable[..., str]


@pytest.fixture
def pair(tiny: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A member and a hydra, as directories."""
    source = tiny()
    files = [
        hs.prune(source, method="random", keep=2, seed=s, out=tmp_path / f"m{s}.safetensors").path
        for s in (1, 2)
    ]
    lone = hs.prune(files[0], mask=tmp_path / "m1.heads.json", out=f"{tmp_path / 'member'}/").path
    return lone, hs.fuse(files, out=f"{tmp_path / 'hydra'}/").path


def between(card: str) -> str:
    return card.partition(BEGIN)[2].partition(END)[0]


def test_each_card_gets_its_own_figures(
    pair: tuple[Path, Path], images: SPEC, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for folder in pair for path in folder.iterdir()}
    left = pair[0] / ".README.md.0123abcd.part"  # of a run that was killed
    left.write_text("half a card")
    options = {
        "data": images(),
        "ood": [
            f"near:held|out={images('near.npz', seed=5)}",
            f"far:f={images('far.npz', rows=30, seed=6, labels=False)}",
        ],
        "shift": [f"noise:3={images('shifted.npz', seed=7)}"],
    }
    found = hs.evaluate([tmp_path / "m1", *pair], card=True, **options)
    assert found.cards == tuple(folder / "README.md" for folder in pair)
    sha256 = {}
    for folder, result in zip(pair, found.report.results[1:], strict=True):
        card = (folder / "README.md").read_text()
        section = between(card)
        i, near, far = result.id, *result.ood
        numbers = " | ".join(f"{v:.3f}" for v in (i.accuracy, i.brier, i.nll, i.ece, i.aece))
        assert f"` | {numbers} |" in section
        assert (
            f"| `held\\x7cout (near)` | {near.auroc:.3f} | {near.fpr95:.3f} | {near.aupr:.3f} |"
            in section
        )
        assert f"| `f (far)` | {far.auroc:.3f} | {far.fpr95:.3f} | {far.aupr:.3f} |" in section
        assert f"| `mean, all` | {result.ood_average['all'].auroc:.3f} |" in section
        assert "mean, near" not in section  # of one set, that is the set
        assert f"| `noise` | {result.shift[0].accuracy:.3f} |" in section
        assert "| Cost | parameters, M ↓ |" in section
        sha256[folder] = re.findall(r"`(\w+\.npz)`, (\d+) samples, sha256 ([0-9a-f]{64})", section)
        assert [(name, rows) for name, rows, _ in sha256[folder]] == [
            ("data.npz", "40"),
            ("near.npz", "40"),
            ("far.npz", "30"),
            ("shifted.npz", "40"),
        ]
        assert str(tmp_path) not in card
        # The hub's own reader finds the same figures in the front matter.
        read = {e.metric_type: e for e in ModelCard(card).data.eval_results}
        assert read["accuracy"].metric_value == pytest.approx(i.accuracy, abs=1e-6)
        assert read["nll"].metric_value == pytest.approx(i.nll, abs=1e-6)
        assert read["accuracy"].dataset_name == "data.npz"
        # All else is as it was: the rest of the card, the weights, the manifest.
        old = before[folder / "README.md"].decode()
        assert (
            old.partition(BEGIN)[0]
            == re.sub(r"model-index:\n(.+\n)*?---\n", "---\n", card).partition(BEGIN)[0]
        )
        assert [p for p in folder.iterdir() if before.get(p) != p.read_bytes()] == [
            folder / "README.md"
        ]
        open_checkpoint(folder).digests()
    assert sha256[pair[0]] == sha256[pair[1]]


def test_again_replaces_what_was_there(pair: tuple[Path, Path], images: SPEC) -> None:
    hydra = pair[1]
    hs.evaluate([hydra], data=images(), ood=[images("o.npz", seed=3)], card=True)
    first = (hydra / "README.md").read_bytes()
    hs.evaluate([hydra], data=images("other.npz", seed=9), card=True, limit=20, seed=4)
    card = (hydra / "README.md").read_text()
    assert "limit 20, seed 4" in between(card)
    assert "samples: 20\n" in card.split("---\n")[1]  # the hub's own table says it, too
    assert "`other.npz`, 20 samples" in between(card)
    assert "Out of distribution" not in between(card)
    assert card.count("model-index:") == card.count(BEGIN) == card.count(END) == 1
    hs.evaluate([hydra], data=images(), ood=[images("o.npz", seed=3)], card=True)
    assert (hydra / "README.md").read_bytes() == first


def test_what_people_wrote_stays(pair: tuple[Path, Path], images: SPEC) -> None:
    path = pair[0] / "README.md"
    text = path.read_text().replace("## Heads", "Ours.\n\n## Heads") + "\nMore.\n"
    front = "model-index:\n- name: theirs\n  results: []\nlibrary_name: timm"
    path.write_text(text.replace("library_name: timm", front))
    hs.evaluate([pair[0]], data=images(), card=True)
    card = path.read_text()
    assert "Ours.\n\n## Heads" in card
    assert card.endswith(f"{END}\n\nMore.\n")
    assert "- name: theirs" in card
    assert card.count("model-index") == 1
    assert "accuracy" in between(card)


def test_a_decision_state_is_told(pair: tuple[Path, Path], images: SPEC, tmp_path: Path) -> None:
    """What was fitted, and on which data; and by which of two checkpoints in one run it was used."""
    val, train, foreign = (
        images("val.npz", rows=120, seed=8),
        images("train.npz", rows=60, seed=2),
        images("f|o`o.npz", rows=40, seed=6),
    )
    made = hs.calibrate(
        pair[1],
        data=val,
        fit_data=train,
        ood=[foreign],
        id_flagged=0.1,
        coverage=0.8,
        out=f"{tmp_path / 'ready'}/",
    )
    card = (made.path / "README.md").read_text()
    section = card.partition("## When it answers\n")[2].partition("\n## ")[0]
    assert all(f"- {line}" in section for line in decision_lines(made.decision)[:2])
    records = made.manifest.history[-1].data
    for data, name in zip(records, ("`val.npz`", "`train.npz`", r"``f\x7co`o.npz``"), strict=True):
        assert f": {name}, {data.rows} rows, sha256 `{data.sha256[:12]}`…" in section
    assert "When it answers" not in (pair[1] / "README.md").read_text()
    result, plain = hs.evaluate([made.path, pair[0]], data=images(), card=True).report.results
    section = between((made.path / "README.md").read_text())
    assert "temperature of the decision state, OOD score of the decision state (OOD" in section
    assert result.id.coverage is not None
    assert f"| {result.id.coverage:.3f} | {result.id.set_size:.3f} |" in section
    assert plain.id.coverage is None
    section = between((pair[0] / "README.md").read_text())
    assert "temperature 1.0, OOD score msp" in section
    assert "decision state" not in section
    hs.evaluate([made.path], data=images(), card=True, no_decision=True)
    assert "decision state" not in between((made.path / "README.md").read_text())
