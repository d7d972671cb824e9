"""Every entry point reads the pixels that an image model's own library reads: of any size, turned as
the library turns them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from row_files import read_lines
from tiny_families import FAMILIES, Family
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.measuring.predictions import read_predictions, write_predictions
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.serving.inputs import RequestInput
from hydrasurgeon.tasks import task_of

SIZES = (
    *((32, 32), (64, 64), (33, 32), (51, 77), (64, 48), (37, 90), (100, 67), (67, 100)),
    *((40, 119), (119, 40), (28, 31), (300, 211)),
)
ORIENTATIONS = range(1, 9)
IMAGES = [name for name, family in FAMILIES.items() if not family.is_text]
READERS = {
    "CLIP by class names": ("eval", "predict", "onnx", "Predictor", "load", "serve"),
    "SigLIP by class names": ("eval", "predict", "onnx", "Predictor", "load", "serve"),
    "ViT": ("predict", "serve", "Predictor"),
    "timm ViT": ("onnx", "load"),
    "OpenCLIP": ("eval", "Predictor"),
}
"""One family of each way to prepare pictures, and the entry points that are tried with it; all in
the slow test.
"""


def processor(family: Family, folder: Path) -> Callable[[Path], Tensor]:
    """What the family's own library makes of a file; transformers' is written into the folder."""
    if family.library == "timm":
        import timm
        from timm.data import create_transform, resolve_model_data_config

        config = json.loads((folder / "config.json").read_text())
        config["pretrained_cfg"] |= {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
        config["pretrained_cfg"] |= {"interpolation": "bicubic", "crop_mode": "center"}
        (folder / "config.json").write_text(json.dumps(config))
        model = timm.create_model(f"local-dir:{folder}", pretrained=True)
        stock = create_transform(**resolve_model_data_config(model))
        return lambda path: stock(Image.open(path).convert("RGB"))
    if family.library == "open_clip":
        import open_clip

        _, _, ready = open_clip.create_model_and_transforms(f"local-dir:{folder}")
        return lambda path: ready(Image.open(path))
    import transformers
    from transformers.image_utils import load_image

    square = {"height": 28, "width": 28}
    kind, said = {
        "ViT": ("ViTImageProcessor", {"size": square}),
        "DeiT": ("DeiTImageProcessor", {"size": {"height": 32, "width": 32}, "crop_size": square}),
        "DINO": ("BitImageProcessor", {"size": {"shortest_edge": 32}, "crop_size": square}),
        "CLIP": ("CLIPImageProcessor", {"size": {"shortest_edge": 28}, "crop_size": square}),
        "SigL": ("SiglipImageProcessor", {"size": square}),
    }[family.name[:4].strip()]
    own = getattr(transformers, kind)(**said)
    own.save_pretrained(folder)
    return lambda path: own(load_image(str(path)), return_tensors="pt")["pixel_values"][0]


def scene(width: int, height: int) -> Image.Image:
    """Slopes and edges: a pixel's place shows everywhere."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    channels = ((3 * x + y) % 256, (x // 9 + y // 7) % 2 * 255, (x * y) % 251)
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def table(folder: Path, cases: list[tuple[tuple[int, int], int]]) -> tuple[str, list[Path]]:
    """The pictures as files, and a table of them."""
    lines, paths = ["id,image,label"], []
    for at, ((height, width), orientation) in enumerate(cases):
        exif = Image.Exif()
        exif[0x0112] = orientation
        paths.append(folder / f"{at}.png")
        scene(width, height).save(paths[-1], exif=exif)
        lines.append(f"{at},{paths[-1].name},{at % 3}")
    (folder / "pictures.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "pictures.csv"), paths


def by_eval(folder: Path, data: str, paths: list[Path]) -> Tensor:
    answers = folder.parent / "answers.safetensors"
    hs.evaluate([folder], data=data, device="cpu", predictions=answers)
    logits = read_predictions(answers).outputs.logits
    assert logits is not None
    return kind_of(task_of(open_checkpoint(folder).manifest.model)).probs(
        torch.from_numpy(logits[:, 0])
    )


def of_rows(folder: Path, rows: list[dict[str, Any]]) -> Tensor:
    """Probabilities of all classes, by row and class."""
    for row in rows:
        if isinstance(row["top"], str):
            row["top"] = json.loads(row["top"])
    ranked = {int(row["id"]): {str(label): p for label, p in row["top"]} for row in rows}
    labels = open_checkpoint(folder).manifest.model.labels or sorted(ranked[0])
    return torch.tensor([[ranked[at][label] for label in labels] for at in range(len(rows))])


def by_predict(folder: Path, data: str, paths: list[Path], engine: str = "torch") -> Tensor:
    out = folder.parent / f"{engine}.jsonl"
    hs.predict(folder, data=data, device="cpu", engine=engine, top=3, out=out)
    return of_rows(folder, read_lines(out))


def by_onnx(folder: Path, data: str, paths: list[Path]) -> Tensor:
    pytest.importorskip("onnxruntime")
    return by_predict(folder, data, paths, "onnx")


def by_predictor(folder: Path, data: str, paths: list[Path]) -> Tensor:
    asked = {"id": [*range(len(paths))], "image": [*map(str, paths)]}
    answers = hs.Predictor(folder, device="cpu", top=3)(asked)
    rows = [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]
    return of_rows(folder, rows)


def by_load(folder: Path, data: str, paths: list[Path]) -> Tensor:
    answers = hs.load(folder, device="cpu").predict([*paths])
    return of_rows(folder, [{"id": at, "top": row["top"]} for at, row in enumerate(answers)])


def by_serve(folder: Path, data: str, paths: list[Path]) -> Tensor:
    model = hs.load(folder, device="cpu")
    sent = [RequestInput(path.name, at, path.read_bytes()) for at, path in enumerate(paths)]
    return model.predict(torch.stack([each.prepared(model.transform) for each in sent]))


ENTRIES: dict[str, Callable[[Path, str, list[Path]], Tensor]] = {
    "eval": by_eval,
    "predict": by_predict,
    "onnx": by_onnx,
    "Predictor": by_predictor,
    "load": by_load,
    "serve": by_serve,
}


def check(
    name: str, entries: list[str], places: list[tuple[tuple[int, int], int]], at: Path
) -> None:
    family = FAMILIES[name]
    family.write(at / "model")
    prepare = processor(family, at / "model")
    data, paths = table(at, places)
    own = family.stock(at / "model")(torch.stack([prepare(path) for path in paths]))
    expected = kind_of(task_of(open_checkpoint(at / "model").manifest.model)).probs(own)
    for entry in entries:
        found = ENTRIES[entry](at / "model", data, paths)
        assert (found - expected).abs().max() < 2e-4, (entry, (found - expected).abs().amax(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_every_entry_point(tmp_path: Path, name: str) -> None:
    """On each size, and on each orientation."""
    shift = [*READERS].index(name)
    places = [(size, (at + shift) % 8 + 1) for at, size in enumerate(SIZES)]
    check(name, [*READERS[name]], places, tmp_path)


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in READERS])
def test_every_family(tmp_path: Path, name: str) -> None:
    shift = IMAGES.index(name)
    places = [(size, (at + shift) % 8 + 1) for at, size in enumerate(SIZES)]
    check(name, ["load"], places, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_the_full_product(tmp_path: Path, name: str) -> None:
    places = [(size, orientation) for size in SIZES for orientation in ORIENTATIONS]
    check(name, [*ENTRIES], places, tmp_path)


@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize("name", ["CLIP by class names", "SigLIP by class names"])
def test_calibrate(tmp_path: Path, name: str) -> None:
    """The state is fitted on what the library's own pixels are answered with."""
    family, folder = FAMILIES[name], tmp_path / "model"
    family.write(folder)
    prepare = processor(family, folder)
    cases = [(SIZES[at % 12], at % 7 + 2) for at in range(60)]
    data, paths = table(tmp_path, cases)
    own = family.stock(folder)(torch.stack([prepare(path) for path in paths]))
    answers = tmp_path / "answers.safetensors"
    hs.evaluate([folder], data=data, device="cpu", predictions=answers)
    recorded = read_predictions(answers)
    said = replace(recorded.outputs, logits=own[:, None].numpy())
    write_predictions(replace(recorded, outputs=said), tmp_path / "own.safetensors")
    found = hs.calibrate(folder, data=data, out=tmp_path / "ready.safetensors", device="cpu")
    expected = hs.calibrate(
        predictions=tmp_path / "own.safetensors", out=tmp_path / "expected.safetensors"
    )
    assert found.decision.temperature == pytest.approx(expected.decision.temperature, rel=1e-3)
