"""One suite for every family: pruned = masked, fused = members, padding, files and training, by value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from paper import SCRATCH, SST2
from slow_circuits import problem_of, slow_order
from taggers import TAGGERS
from tiny_families import (
    CLASSES,
    FAMILIES,
    HEADS,
    KINDS,
    LAYERS,
    NAMESAKES,
    VOCAB,
    WORDS,
    Family,
    deberta,
    thoroughly,
)
from tiny_members import RAGGED, logits, member, members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Stack
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.criteria.circuits.engine import CircuitEngine
from hydrasurgeon.heads import all_heads
from hydrasurgeon.options.shared import Run

ALL = [pytest.param(family, id=name.replace(" ", "-")) for name, family in FAMILIES.items()]
FEW = ("BERT", "ModernBERT")
"""Token classifiers of the fast tests."""
VARIANTS = (
    deberta("c2p", pos_att_type="c2p"),
    deberta("p2c shared", pos_att_type=["p2c"], share_att_key=True),
    replace(deberta("few distances", max_relative_positions=3, type_vocab_size=2), typed=True),
    deberta("projected", position_buckets=6, embedding_size=16),
    deberta("places", relative_attention=False, position_biased_input=True),
    deberta("nothing compared", pos_att_type=None),
)
"""DeBERTas with some terms, or none."""
MORE = [
    *(
        pytest.param(family, id=family.name, marks=() if name in FEW else pytest.mark.slow)
        for name, family in TAGGERS.items()
    ),
    *(pytest.param(family, id=family.name, marks=pytest.mark.slow) for family in VARIANTS),
]
"""What is recognised, cut and fused, and no family of its own."""
TEXTS = thoroughly(*(name for name in KINDS if FAMILIES[name].is_text))


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The family's own directory."""
    folder = tmp_path / "source"
    request.getfixturevalue("family").write(folder)
    return folder


@pytest.mark.parametrize("family", [*ALL, *MORE])
def test_it_is_recognised_and_runs_as_its_library_runs_it(family: Family, source: Path) -> None:
    opened = open_checkpoint(source)
    for tower in opened.manifest.towers.values():
        assert (tower.layers, tower.heads, tower.head_dim) == (LAYERS, HEADS, 8)
    assert opened.manifest.kept == family.in_each_tower(((0, 1, 2, 3),) * LAYERS)
    assert opened.manifest.model.num_classes == CLASSES
    inputs = family.inputs()
    expected = family.stock(source)(inputs)
    assert expected[0].std() > 1e-2  # the model says something
    torch.testing.assert_close(logits(source, inputs)[:, 0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", [*ALL, *MORE])
def test_pruned_equals_masked(family: Family, source: Path, tmp_path: Path) -> None:
    pruned = member(source, family, RAGGED, tmp_path / "m.safetensors")
    for dtype, atol in (("float64", 1e-11), ("float32", 1e-5)):
        model = hs.load(source, device="cpu", dtype=dtype)
        inputs = family.inputs(dtype=getattr(torch, dtype))
        sites = model.anatomy.sites
        full = family.in_each_tower(((0, 1, 2, 3),) * LAYERS)
        gone = [h for h in all_heads(full) if h.number not in RAGGED[h.layer]]
        with torch.inference_mode():
            whole = model(inputs)
            with ablated(sites, gone):
                expected = model(inputs)
        assert (whole - expected).abs().max() > 1e-2  # the heads matter
        torch.testing.assert_close(logits(pruned, inputs, dtype), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("family", [*thoroughly(*KINDS, *NAMESAKES), *MORE])
def test_fused_equals_members(family: Family, source: Path, tmp_path: Path) -> None:
    """Training-free members (shared heads, a trunk), and tuned ones (nothing shared)."""
    members = members_of(source, family, tmp_path)
    fused = hs.fuse(members, out=tmp_path / "hydra.safetensors")
    assert fused.manifest.fusion is not None
    assert fused.manifest.fusion.trunk == 1
    assert fused.bytes_stored <= open_checkpoint(source).tensors.nbytes
    tuned = tuned_of(members, tmp_path)
    apart = hs.fuse(tuned, out=tmp_path / "apart.safetensors", mlp="separate")
    inputs = family.inputs(dtype=torch.float64)
    for hydra, parts in ((fused.path, members), (apart.path, tuned)):
        expected = torch.cat([logits(part, inputs, "float64") for part in parts], dim=1)
        assert (expected[:, 0] - expected[:, 1]).abs().max() > 1e-3
        torch.testing.assert_close(logits(hydra, inputs, "float64"), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", [FAMILIES["timm ViT"], FAMILIES["MPNet"]], ids=["timm", "MPNet"])
def test_a_layer_may_be_empty_in_all_members(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    rows = ([[0, 1], [], [2]], [[1, 3], [], [0]])
    parts = [
        member(tmp_path / "source", family, row, tmp_path / f"m{i}.safetensors")
        for i, row in enumerate(rows)
    ]
    hydra = hs.fuse(parts, out=tmp_path / "h.safetensors").path
    inputs = family.inputs(dtype=torch.float64)
    expected = torch.cat([logits(part, inputs, "float64") for part in parts], dim=1)
    torch.testing.assert_close(logits(hydra, inputs, "float64"), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ALL)
def test_the_readout_looks_at_no_other_token(family: Family, source: Path) -> None:
    """A hydra computes no more than these in its last layer."""
    model = hs.load(source, device="cpu")
    anatomy = model.anatomy
    hidden = torch.randn(2, 9, anatomy.blocks[0].attention.out.weight.shape[0])
    with torch.no_grad():
        whole = anatomy.readout(Stack(hidden))
        if anatomy.reads is None:
            assert (anatomy.readout(Stack(hidden[:, :-1])) - whole).abs().max() > 1e-4
        else:
            torch.testing.assert_close(anatomy.readout(Stack(hidden[:, : anatomy.reads])), whole)


@pytest.mark.parametrize("family", TEXTS)
def test_padding_changes_nothing(family: Family, source: Path, tmp_path: Path) -> None:
    members = members_of(source, family, tmp_path)
    hydra = hs.fuse(members, out=tmp_path / "hydra.safetensors").path
    inputs = family.inputs()
    wider = {
        "input_ids": torch.nn.functional.pad(inputs["input_ids"], (0, 7), value=1),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 7)),
    }
    alone = {name: value[1:2, :4] for name, value in inputs.items()}
    for path in (source, members[1], hydra):
        found = logits(path, inputs)
        torch.testing.assert_close(logits(path, wider), found, rtol=0, atol=1e-5)
        torch.testing.assert_close(logits(path, alone), found[1:2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", thoroughly())
def test_scoring_reads_every_sample_once(family: Family, source: Path, tmp_path: Path) -> None:
    """Scores do not depend on how samples share batches, so neither padding nor batching leaks into them."""
    data = family.data(tmp_path)
    found = [
        hs.score(source, method="taylor", data=data, batch_size=size, device="cpu").result.values
        for size in (5, 24)
    ]
    assert found[0] is not None
    assert found[1] is not None
    for tower in family.in_each_tower(None):
        first, second = (torch.tensor(values[tower]) for values in found)
        assert first.shape == (LAYERS, HEADS)
        assert (first > 0).all()
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("family", thoroughly(*KINDS, *NAMESAKES))
def test_all_five_stages(family: Family, source: Path, tmp_path: Path) -> None:
    data = family.data(tmp_path)
    recipe = SST2 if family.is_text else SCRATCH
    hs.score(source, method="taylor", data=data, keep=2, device="cpu")
    pruned = hs.prune(source, method="taylor", keep=2, out=tmp_path / "m0.safetensors")
    for rows in (pruned.manifest.kept or {}).values():
        assert [len(row) for row in rows] == [2] * LAYERS
    # Without dropout: a few steps must show in the loss, whatever the noise.
    options = {"steps": "24", "lr": "0.002", "batch_size": "8", "warmup": "0", "dropout": "0"}
    tuned = hs.finetune(
        pruned.path,
        data=data,
        recipe=recipe,
        set=options,
        out=tmp_path / "t0.safetensors",
        device="cpu",
    )
    assert tuned.manifest.kept == pruned.manifest.kept
    assert tuned.trained.steps == 24
    first, *_, last = tuned.trained.log
    assert last["loss"] < first["loss"]
    other = hs.prune(source, method="random", keep=2, seed=1, out=tmp_path / "m1.safetensors")
    fused = hs.fuse(
        [tuned.path, other.path],
        out=tmp_path / "h.safetensors",
        mlp="separate",
        check=data,
        tolerance=1e-5,
    )
    assert fused.agreement is not None
    assert fused.agreement.max_difference < 1e-5
    (result,) = hs.evaluate([fused.path], data=data, device="cpu").report.results
    assert result.id is not None
    assert result.id.n == 24
    assert result.members == 2


@pytest.mark.parametrize("family", ALL)
def test_a_lone_file_is_complete(family: Family, source: Path, tmp_path: Path) -> None:
    """Weights, manifest and tokenizer travel in one file: what it predicts does not change on the way."""
    data = family.data(tmp_path)
    whole = hs.prune(source, method="magnitude", keep=4, out=tmp_path / "whole.safetensors").path
    (tmp_path / "away").mkdir()
    lone = whole.rename(tmp_path / "away" / "lone.safetensors")
    from hydrasurgeon.data import open_data
    from hydrasurgeon.runtime.answering import collected

    samples = open_data(data)
    whole = collected([hs.load(source, device="cpu")], samples, Run(batch_size=24))
    alone = collected([hs.load(lone, device="cpu")], samples, Run(batch_size=7))
    np.testing.assert_allclose(alone.logits, whole.logits, rtol=0, atol=1e-5)
    assert whole.labels is not None
    assert alone.labels is not None
    assert whole.labels.tolist() == alone.labels.tolist() == [i % CLASSES for i in range(24)]


def test_texts_become_the_checkpoints_own_tokens(tmp_path: Path) -> None:
    FAMILIES["BERT"].write(tmp_path / "b")
    model = hs.load(tmp_path / "b", device="cpu")
    batch = model.transform.collate(["good film", "a very very bad film"])
    assert batch["input_ids"].tolist() == [
        [0, VOCAB["good"], VOCAB["film"], 2, 1, 1, 1],
        [0, *(VOCAB[w] for w in ("a", "very", "very", "bad", "film")), 2],
    ]
    assert batch["attention_mask"].sum(dim=1).tolist() == [4, 7]
    long = model.transform.collate([" ".join(WORDS * 5)])
    assert long["input_ids"].shape == (1, 24)


def table_row(name: str) -> tuple[str, str]:
    """Return the models of a family, and the other cells of its row in the docs."""
    family = FAMILIES[name]
    if family.library == "timm":
        return name.removeprefix(
            "timm "
        ), "timm | images | file, directory, `timm:` | `timm.create_model`"
    if name == "OpenCLIP":
        cells = "open_clip | images, class names | directory, `open_clip:` | `hydrasurgeon.load`"
        return "ViT and text transformer", cells
    if family.towers:
        return name, "transformers | images, class names | directory, `hf:` | `hydrasurgeon.load`"
    data, task = ("texts", "Sequence") if family.is_text else ("images", "Image")
    cells = f"transformers | {data} | directory, `hf:` | `AutoModelFor{task}Classification`"
    return name, cells


def test_the_table_in_the_docs_lists_the_tested_families() -> None:
    """docs/reference/families.md has a row for each library and kind of data; the message is the table to paste."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "families.md"
    models: dict[str, list[str]] = {}
    for name in FAMILIES:
        title, cells = table_row(name)
        models.setdefault(cells, []).append(title)
    rows = []
    for cells, titles in models.items():
        library, others = cells.split(" | ", 1)
        rows.append(f"| {library} | {', '.join(titles)} | {others} |")
    text = page.read_text(encoding="utf-8")
    table = text.split("<!-- families -->")[1].split("<!-- /families -->")[0]
    assert table.strip().splitlines()[2:] == rows, "\n".join(rows)


@pytest.mark.parametrize("family", thoroughly())
def test_circuits_are_found_exactly(family: Family, source: Path, tmp_path: Path) -> None:
    """Shared layers, single tokens and masks give the order of the library's own masked forward pass."""
    pruned = member(source, family, [[0, 1, 3], [0, 1, 2, 3], [1, 2]], tmp_path / "m.safetensors")
    data = family.data(tmp_path)
    (tmp_path / "ood").mkdir()
    # Another seed: where OOD samples repeat labelled ones, rounding alone would break the ties.
    ood = family.data(tmp_path / "ood", rows=15, seed=4)
    options = {"method": "circuit", "batch_size": 7, "device": "cpu", "tower": family.tower}
    order = hs.score(pruned, data=data, ood=[ood], remove=4, **options).result.order
    if family.name != "SigLIP by class names":  # many labels: the slow search knows one class alone
        assert list(order or ()) == slow_order(problem_of(pruned, data, ood, tower=family.tower), 4)
    model = hs.load(pruned, device="cpu", dtype="float64")
    sites = [block.attention for block in model.anatomy.blocks]
    engine = CircuitEngine(model.anatomy, together=16)
    inputs = family.inputs(4, torch.float64)
    heads = [head for head in all_heads(model.manifest.kept) if head.tower == family.tower]
    with torch.inference_mode():
        engine.remove(heads[:2])
        found = engine.without_each(inputs, heads[2:])
        for head, ours in zip(heads[2:], found, strict=True):
            with ablated(sites, [*heads[:2], head]):
                torch.testing.assert_close(ours, model.module(inputs), rtol=0, atol=1e-11)
