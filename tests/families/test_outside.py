"""A family of another package: defined here, plugged in, and taken from recognition through all five stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from paper import SCRATCH
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import hydrasurgeon as hs
from hydrasurgeon import families
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.families.base import BareCheckpoint, Family
from hydrasurgeon.families.weights import OUT, PACKED, Weight, linear, norm
from hydrasurgeon.files import manifest
from hydrasurgeon.files.manifest import Model, Tower
from hydrasurgeon.heads import Kept, all_heads

DIM, HEADS, HEAD_DIM, LAYERS, CLASSES = 24, 3, 8, 2, 4
NONE = nn.Identity()
# Of a layer without heads.
pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


class Layer(nn.Module):
    def __init__(self, row: tuple[int, ...]) -> None:
        super().__init__()
        self.heads, width = row, len(row) * HEAD_DIM
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * width), nn.Linear(width, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.qkv(self.norm1(x)).unflatten(-1, (3, len(self.heads), HEAD_DIM))).unbind(-3)
        mixed = scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Rows(nn.Module):
    """A transformer that reads an image row by row."""

    def __init__(self, classes: int, kept: Kept) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(28, DIM), nn.Linear(DIM, classes)
        self.layers = nn.Sequential(*(Layer(row) for row in kept["vision"]))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(images.mean(1))).mean(1))


class RowsFamily(Family):
    name = "rows"
    config_file = "rows.json"

    def identify(self, bare: BareCheckpoint) -> tuple[Model, None]:
        config = dict(bare.config or {})
        preprocess = {"input_size": [3, 28, 28], "mean": [0.5] * 3, "std": [0.5] * 3}
        return Model(
            family=self.name, arch="rows", config=config, num_classes=CLASSES, preprocess=preprocess
        ), None

    def towers(self, model: Model) -> dict[str, Tower]:
        return {"vision": Tower(layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, dim=DIM)}

    def weights(self, model: Model) -> Iterator[Weight]:
        for weight in linear("embed", DIM, 28, "embedding"):
            yield Weight(weight.name, weight.shape, weight.part, "vision")
        for layer in range(LAYERS):
            parts = (
                *norm("norm1", DIM),
                *linear("qkv", 3 * DIM, DIM, "attention", heads=PACKED),
                *linear("out", DIM, DIM, "output", heads=OUT),
                *norm("norm2", DIM),
                *linear("mlp.0", 2 * DIM, DIM, "mlp"),
                *linear("mlp.2", DIM, 2 * DIM, "mlp"),
            )
            yield from (part.within(f"layers.{layer}", "vision", layer) for part in parts)
        yield from linear("head", model.num_classes, DIM, "classifier")

    def build(self, model: Model, kept: Kept, *, fresh: bool = False) -> nn.Module:
        with torch.device("cpu" if fresh else "meta"):
            return Rows(model.num_classes, kept)

    def anatomy(self, module: Any) -> Anatomy:
        return Anatomy(
            embed=lambda images: Stack(module.embed(images.mean(1))),
            embed_parts=(module.embed,),
            blocks=tuple(self._block(layer, i) for i, layer in enumerate(module.layers)),
            readout=lambda stack: module.head(stack.hidden.mean(1)),
            readout_parts=(module.head,),
        )

    def _block(self, layer: Any, number: int) -> Block:
        sizes = {"heads": layer.heads, "head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5}
        site = Attention(tower="vision", layer=number, project=(layer.qkv,), out=layer.out, **sizes)
        return Block(layer.norm1, site, NONE, layer.norm2, layer.mlp, NONE)


FULL = {"vision": ((0, 1, 2),) * LAYERS}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The family is known for one test, and a directory of it is there."""
    for module in (families, manifest):
        monkeypatch.setattr(module, "plugins", {"families": {"rows": RowsFamily}}.__getitem__)
    folder = tmp_path / "source"
    folder.mkdir()
    torch.manual_seed(0)
    save_file(Rows(CLASSES, FULL).state_dict(), folder / "model.safetensors")
    (folder / "rows.json").write_text(json.dumps({"any": "settings"}))
    return folder


def pictures() -> Tensor:
    return torch.randn(5, 3, 28, 28, generator=torch.Generator().manual_seed(1)).double()


def logits(path: Path) -> Tensor:
    with torch.inference_mode():
        return hs.load(path, device="cpu", dtype="float64")(pictures())


def member(source: Path, rows: list[list[int]], out: Path) -> Path:
    mask = out.with_suffix(".mask.json")
    mask.write_text(json.dumps({"vision": rows}))
    return hs.prune(source, mask=mask, out=out).path


def test_it_is_recognised_and_runs(source: Path) -> None:
    opened = open_checkpoint(source)
    assert opened.manifest.model.family == "rows"
    assert opened.manifest.model.config == {"any": "settings"}
    assert opened.manifest.kept == FULL
    torch.manual_seed(0)
    expected = Rows(CLASSES, FULL).double()(pictures())
    torch.testing.assert_close(logits(source)[:, 0], expected, rtol=0, atol=1e-12)
    # A file alone says nothing of its family: `--arch` does.
    weights = source / "model.safetensors"
    assert open_checkpoint(weights, arch="rows:rows").manifest.model.family == "rows"


def test_pruned_equals_masked(source: Path, tmp_path: Path) -> None:
    pruned = member(source, [[0, 2], []], tmp_path / "m.safetensors")
    model = hs.load(source, device="cpu", dtype="float64")
    gone = [head for head in all_heads(FULL) if head.number not in ([0, 2], [])[head.layer]]
    with torch.inference_mode(), ablated(model.anatomy.sites, gone):
        expected = model(pictures())
    assert (expected - logits(source)).abs().max() > 1e-2
    torch.testing.assert_close(logits(pruned), expected, rtol=0, atol=1e-12)


def test_all_five_stages(source: Path, images: Any, tmp_path: Path) -> None:
    data = images(classes=CLASSES)
    hs.score(source, method="taylor", data=data, device="cpu")
    pruned = hs.prune(source, method="taylor", keep=2, out=tmp_path / "m0.safetensors")
    options = {"steps": "24", "lr": "0.002", "batch_size": "8", "warmup": "0"}
    tuned = hs.finetune(
        pruned.path,
        data=data,
        recipe=SCRATCH,
        set=options,
        freeze="embeddings",
        out=tmp_path / "t0.safetensors",
        device="cpu",
    )
    first, *_, last = tuned.trained.log
    assert last["loss"] < first["loss"]
    before, after = open_checkpoint(pruned.path).digests(), open_checkpoint(tuned.path).digests()
    still = {name for name in before if before[name] == after[name]}
    assert still == {"embed.weight", "embed.bias"}
    other = hs.prune(source, method="random", keep=2, seed=1, out=tmp_path / "m1.safetensors")
    fused = hs.fuse(
        [tuned.path, other.path], out=f"{tmp_path}/h/", mlp="separate", check=data, tolerance=1e-5
    )
    assert (fused.path / "model.safetensors").is_file()  # a directory, in the family's layout
    (result,) = hs.evaluate([fused.path], data=data, device="cpu").report.results
    assert result.members == 2
    assert result.id is not None
    assert result.id.n == 40
