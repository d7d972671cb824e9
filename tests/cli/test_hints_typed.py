"""Hints, typed as they are printed: the command runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exporting import exports, onnx_writes
from safetensors.torch import load_file, save_file
from stock_models import ready
from tiny_families import FAMILIES
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run

CAPTURE = pytest.CaptureFixture[str]


def said(capsys: CAPTURE) -> str:
    """What was printed on stderr, in one line."""
    return " ".join(capsys.readouterr().err.split())


def tuned(folder: Path) -> list[Path]:
    """Two ViTs of a size that timm does not register, near each other, as save_file writes them."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 2, "num_heads": 12}
    paths = []
    for number in range(2):
        torch.manual_seed(0)
        model = VisionTransformer(num_classes=4, **sizes)
        torch.manual_seed(number)
        state = {n: p + 0.01 * torch.randn_like(p) for n, p in model.state_dict().items()}
        paths.append(folder / f"v{number}.safetensors")
        save_file(state, paths[-1])
    return paths


def test_fuse_takes_the_architecture_that_its_hint_asks_for(
    tmp_path: Path, capsys: CAPTURE
) -> None:
    paths = tuned(tmp_path)
    line = ["fuse", *map(str, paths), "--mean", "-o", str(tmp_path / "mean"), "--quiet"]
    assert run(line) == 3
    found = re.search(r"Say it: (--arch) (\S+)", said(capsys))
    assert found is not None
    arch = found[2].replace("num_heads=…", "num_heads=12").replace("img_size=…", "img_size=32")
    assert run([*line, found[1], arch]) == 0
    one, other = map(load_file, paths)
    mean = load_file(tmp_path / "mean.safetensors")
    assert mean.keys() == one.keys()
    for name, tensor in mean.items():
        expected = (one[name].double() + other[name].double()) / 2
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-7)
    (entry,) = hs.checkpoints.checkpoint.open_checkpoint(tmp_path / "mean").manifest.history
    assert entry.args["arch"] == arch


def test_monitor_asks_for_what_calibrate_wrote(tmp_path: Path, capsys: CAPTURE) -> None:
    """A bare file has no decision state, whatever its architecture: `monitor` has no --arch."""
    path, *_ = tuned(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert run(["monitor", str(tmp_path / "a.jsonl"), "--against", str(path)]) == 3
    text = said(capsys)
    assert "has no manifest, and so no decision state" in text
    assert "--arch" not in text


@exports
@onnx_writes
@pytest.mark.slow
@pytest.mark.parametrize(("name", "out"), [("timm ViT", "FILE.onnx"), ("BERT", "DIR/")])
def test_what_has_no_class_is_written_as_its_hint_says(
    name: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPTURE
) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    hs.fuse(members_of(tmp_path / "source", family, tmp_path), out=tmp_path / "hydra.safetensors")
    monkeypatch.chdir(tmp_path)
    assert run(["export", "hydra", "--format", "stock"]) == 4
    found = re.search(r"`export -o (\S+)`", said(capsys))
    assert found is not None
    assert found[1] == out
    assert run(["export", "hydra", "-o", out, "--quiet"]) == 0
    assert Path(out).exists()


@pytest.mark.slow
def test_only_what_is_calibrated_is_called_so(tmp_path: Path, capsys: CAPTURE) -> None:
    path, *_ = ready(FAMILIES["BERT"], tmp_path, neurons=None)
    for source, calibrated in ((path, True), (tmp_path / "source", False)):
        capsys.readouterr()
        line = ["export", str(source), "--format", "stock", "-o", f"{tmp_path}/s{calibrated}/"]
        assert run(line) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert ("its library loads it, with its calibration" in printed) is calibrated
        assert ("not calibrated" in printed) is not calibrated


@pytest.mark.parametrize("heads", [4, 2])
def test_a_card_speaks_of_pruned_heads_where_some_are_gone(
    heads: int, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    hs.prune(tiny(), method="random", keep=heads, out=f"{tmp_path}/d/")
    card = (tmp_path / "d" / "README.md").read_text()
    assert ("- attention-head-pruning" in card) is (heads == 2)
    assert "members in one pass" not in card
