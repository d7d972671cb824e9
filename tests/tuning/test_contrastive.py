"""LiT: the loss and whole training runs against open_clip's own, and what is locked stays to the bit."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_families import CLIP, write_clip
from torch.nn.functional import normalize
from two_processes import in_two_processes

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data.pairs import open_pairs
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.tuning import contrastive
from hydrasurgeon.tuning.loop import epoch_order

ROWS = 24
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (20, 40, 230),
    "grey": (128, 128, 128),
}
PLAIN = {"augment.random_resized_crop": "null", "warmup": "0", "lr": "1e-3"}


def encoded(image: Image.Image) -> bytes:
    made = io.BytesIO()
    image.save(made, "PNG")
    return made.getvalue()


def examples(rows: int = ROWS) -> list[tuple[bytes, str]]:
    rng = np.random.default_rng(0)
    names = list(COLOURS)
    found = []
    for i in range(rows):
        pixels = rng.integers(0, 40, (28, 28, 3)) + COLOURS[names[i % 4]]
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        found.append((encoded(image), f"a {names[i % 4]} square, number {i}"))
    return found


def shard(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def pair(key: str, example: tuple[bytes, str]) -> list[tuple[str, bytes]]:
    return [(f"{key}.png", example[0]), (f"{key}.json", b"{}"), (f"{key}.txt", example[1].encode())]


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """Two shards with all that the real ones have: other members, and keys that are no pairs."""
    found = examples()
    first = [member for i, e in enumerate(found[:10]) for member in pair(f"part/{i:05}", e)]
    second = [member for i, e in enumerate(found[10:], 10) for member in pair(f"{i:05}", e)]
    second[3:3] = [("00010b.txt", b"no image"), ("00010c.png", found[0][0])]
    shard(tmp_path / "shards-000.tar", first)
    shard(tmp_path / "shards-001.tar", second)
    return str(tmp_path / "shards-{000..001}.tar")


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    write_clip(tmp_path / "clip")
    return tmp_path / "clip"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path if path.is_file() else path / "open_clip_model.safetensors")


@pytest.mark.parametrize("biased", [False, True])
def test_the_loss_is_open_clips(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradients; in chunks, and as the sum of what two processes have."""
    from open_clip.loss import ClipLoss

    monkeypatch.setattr(contrastive, "CHUNK", 3)
    generator = torch.Generator().manual_seed(0)
    images, texts = (
        normalize(torch.randn(11, 8, generator=generator), dim=-1).double() for _ in range(2)
    )
    texts.requires_grad_()
    scale = torch.tensor(14.3, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True) if biased else None
    loss = ClipLoss()(images, texts, scale, bias)
    loss.backward()
    whole = contrastive.contrast(images, texts, scale, bias)
    shares = [
        contrastive.contrast(images, texts, scale, bias, rows=r) for r in (range(4), range(4, 11))
    ]
    for found, right in (("loss", loss.detach()), ("texts", texts.grad), ("scale", scale.grad)):
        torch.testing.assert_close(getattr(whole, found), right, rtol=1e-10, atol=1e-12)
        summed = getattr(shares[0], found) + getattr(shares[1], found)
        torch.testing.assert_close(summed, right, rtol=1e-10, atol=1e-12)
    if bias is not None:
        assert bias.grad is not None
        torch.testing.assert_close(whole.bias, bias.grad, rtol=0, atol=1e-12)


def open_clips_run(
    folder: Path, spec: str, batch: int, lr: float
) -> tuple[dict[str, Any], list[float]]:
    """OpenCLIP's own training: its model, loss and parameter groups; one epoch of whole batches."""
    import open_clip
    from open_clip.loss import ClipLoss

    model: Any = open_clip.create_model(f"local-dir:{folder}")
    model.lock_image_tower()
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    plain = [p for n, p in named if p.ndim < 2 or "ln" in n or "bias" in n or "logit_scale" in n]
    rest = [p for n, p in named if not any(p is q for q in plain)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.2}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-6)
    samples, read = open_pairs(spec), open_clip.get_tokenizer(f"local-dir:{folder}")
    prepare = hs.load(folder, device="cpu").transform
    steps, losses = len(samples) // batch, []
    order = epoch_order(len(samples), seed=0, epoch=0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = (
            lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        rows: list[Any] = [samples.read(int(i)) for i in order[step * batch : (step + 1) * batch]]
        out = model(torch.stack([prepare(image) for image, _ in rows]), read([t for _, t in rows]))
        loss = ClipLoss()(*out) if isinstance(out, tuple) else ClipLoss()(**out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        losses.append(float(loss.detach()))
    return model.state_dict(), losses


@pytest.mark.parametrize(("batch", "accumulate"), [(8, 1), (4, 2), (2, 4)])
def test_training_is_open_clips(
    clip: Path, pairs: str, tmp_path: Path, batch: int, accumulate: int
) -> None:
    """However a step's pairs are split: the contrast is over all of them."""
    expected, losses = open_clips_run(clip, pairs, 8, 1e-3)
    options = PLAIN | {"batch_size": str(batch), "accumulate": str(accumulate)}
    tuned = hs.finetune(
        clip, data=pairs, recipe="lit", set=options, out=tmp_path / "t.safetensors", device="cpu"
    )
    assert tuned.trained.steps == 3
    assert tuned.trained.loss == pytest.approx(np.mean(losses), abs=1e-5)
    before = weights(clip)
    for name, tensor in weights(tuned.path).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-5, msg=name)
        moved = not torch.equal(tensor, before[name])
        assert moved is not name.startswith("visual."), name


def test_the_scale_is_kept_below_a_hundred(clip: Path, pairs: str, tmp_path: Path) -> None:
    file = clip / "open_clip_model.safetensors"
    save_file({**weights(clip), "logit_scale": torch.tensor(5.0)}, file, {"format": "pt"})
    (clip / "heads.json").unlink()
    options = PLAIN | {"batch_size": "12", "accumulate": "1", "steps": "1", "lr": "1e-6"}
    tuned = hs.finetune(
        clip, data=pairs, recipe="lit", set=options, out=tmp_path / "t.safetensors", device="cpu"
    )
    assert float(weights(tuned.path)["logit_scale"]) == pytest.approx(math.log(100), abs=1e-6)
    assert tuned.manifest.model.labels is None  # nobody has named classes, and nobody had to


def test_members_share_the_locked_tower(clip: Path, pairs: str, tmp_path: Path) -> None:
    """Pruned heads stay pruned, and a hydra stores the image tower's weights once."""
    members = []
    for seed in range(2):
        pruned = hs.prune(
            clip, method="random", remove=8, seed=seed, out=tmp_path / f"m{seed}.safetensors"
        )
        options = PLAIN | {"batch_size": "8", "accumulate": "1", "steps": "2"}
        tuned = hs.finetune(
            pruned.path,
            data=pairs,
            recipe="lit",
            set=options,
            seed=seed,
            out=tmp_path / f"t{seed}.safetensors",
            device="cpu",
            dtype="bfloat16" if seed else "float32",
        )
        assert tuned.manifest.kept == pruned.manifest.kept
        assert tuned.manifest.history[-1].args["recipe"] == "lit"
        before, after = (open_checkpoint(p.path).digests() for p in (pruned, tuned))
        assert {n for n in before if before[n] == after[n]} == {
            n for n in before if n.startswith("visual.")
        }
        members.append(tuned.path)
    fused = hs.fuse(members, out=tmp_path / "h.safetensors", mlp="separate")
    stored = open_checkpoint(fused.path).tensors
    assert not [name for name in stored if name.startswith("members.") and ".visual." in name]
    whole = open_checkpoint(clip).tensors
    image = [name for name in whole if name.startswith("visual.")]
    for name in image:
        assert stored[name].shape[0] <= whole[name].shape[0] if whole[name].shape else True
    with torch.inference_mode():
        x = torch.randn(4, 3, 28, 28)
        apart = torch.cat([hs.load(m, device="cpu")(x) for m in members], dim=1)
        torch.testing.assert_close(hs.load(fused.path, device="cpu")(x), apart, rtol=0, atol=1e-5)


class Killed(Exception):
    pass


def test_an_interrupted_run_ends_with_the_same_bits(clip: Path, pairs: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": pairs,
        "recipe": "lit",
        "device": "cpu",
        "seed": 2,
        "set": {"epochs": "2", "batch_size": "4", "accumulate": "2", "warmup": "1"},
    }
    hs.finetune(clip, out=tmp_path / "whole.safetensors", **options)

    def kill(what: str, done: int, total: int) -> None:
        if done == 5:
            raise Killed

    cut = tmp_path / "cut.safetensors"
    with pytest.raises(Killed):
        hs.finetune(clip, out=cut, save_every=2, progress=kill, **options)
    hs.finetune(clip, out=cut, resume=True, **options)
    assert cut.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


@pytest.mark.slow
def test_two_processes_train_like_one(clip: Path, pairs: str, tmp_path: Path) -> None:
    """Features are gathered: two processes contrast what one does with twice the batch."""
    one = hs.finetune(
        clip,
        data=pairs,
        recipe="lit",
        set=PLAIN | {"batch_size": "4", "accumulate": "2"},
        device="cpu",
        out=tmp_path / "one.safetensors",
    )
    sets = [
        p
        for k, v in (PLAIN | {"batch_size": "2", "accumulate": "2"}).items()
        for p in ("--set", f"{k}={v}")
    ]
    in_two_processes(
        *f"finetune {clip} --data {pairs} --recipe lit --device cpu -o {tmp_path / 'two.safetensors'}".split(),
        *sets,
    )
    found = weights(tmp_path / "two.safetensors")
    before = weights(clip)
    for name, tensor in weights(one.path).items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=2e-5, msg=name)
    assert not torch.equal(found["logit_scale"], before["logit_scale"])


def test_every_form_of_pairs(pairs: str, tmp_path: Path) -> None:
    from datasets import Dataset

    found = examples()
    table = Dataset.from_dict(
        {
            "image": [{"bytes": image, "path": None} for image, _ in found],
            "caption": [t for _, t in found],
        }
    )
    table.to_parquet(tmp_path / "pairs.parquet")
    specs = [pairs, str(tmp_path), str(tmp_path / "shards-*.tar"), str(tmp_path / "pairs.parquet")]
    for spec in specs:
        samples = open_pairs(spec)
        assert len(samples) == ROWS
        for i in (0, 9, 10, 23):
            image, text = samples.read(i)  # type: ignore[misc]
            assert text == found[i][1]
            assert encoded(image) == found[i][0]
    hashes = {open_pairs(spec).fingerprint()["sha256"] for spec in specs[:3]}
    assert len(hashes) == 1
    assert len(open_pairs(pairs, limit=5)) == 5
    with_other = shard(tmp_path / "o.tar", pair("00000", (found[0][0], "another caption")))
    assert open_pairs(str(with_other)).fingerprint()["sha256"] not in hashes


def test_what_holds_no_pairs(
    clip: Path, pairs: str, tmp_path: Path, tiny: Any, images: Any
) -> None:
    one = examples(1)[0]
    shard(tmp_path / "empty.tar", [("readme.md", b"nothing here")])
    whole = shard(tmp_path / "half.tar", pair("0", one)).read_bytes()
    (tmp_path / "half.tar").write_bytes(whole[:1500])
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    (tmp_path / "t.csv").write_text("image,label\na.png,1\n")
    (tmp_path / "none").mkdir()
    for spec, said in (
        ("empty.tar", "holds no image–text pairs"),
        ("half.tar", "not a readable tar file"),
        ("a.tar.gz", "not image–text pairs"),
        ("t.csv", "needs columns image and text or caption"),
        ("none", "no such image–text pairs"),
        ("shards-{000..002}.tar", "shards-002.tar: no such image–text pairs"),
        ("absent.parquet", "no such image–text pairs"),
    ):
        with pytest.raises(DataError, match=said):
            open_pairs(str(tmp_path / spec))
    options: dict[str, Any] = {"recipe": "lit", "device": "cpu", "out": tmp_path / "x.safetensors"}
    with pytest.raises(UsageError, match="no text tower"):
        hs.finetune(tiny(), data=pairs, **options)
    with pytest.raises(UsageError, match="accumulates 4 batches, the data has 1"):
        hs.finetune(clip, data=pairs, **options)
    bad = shard(
        tmp_path / "bad.tar", [*pair("0", one), *pair("1", (b"no image", "x")), *pair("2", one)]
    )
    small = {"batch_size": "3", "accumulate": "1"}
    with pytest.raises(DataError, match="not a readable image"):
        hs.finetune(clip, data=str(bad), set=small, **options)
    assert not (tmp_path / "x.safetensors").exists()
    assert hs.finetune(clip, data=str(bad), set=small, skip_bad=True, **options).trained.steps == 1


def test_zero_shot_accuracy_is_followed(clip: Path, pairs: str, tmp_path: Path) -> None:
    for i, (image, _) in enumerate(examples(12)):
        home = tmp_path / "val" / list(COLOURS)[i % 4]
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{i}.png").write_bytes(image)
    (clip / "heads.json").unlink()
    options = PLAIN | {"batch_size": "12", "accumulate": "1", "epochs": "2"}
    tuned = hs.finetune(
        clip,
        data=pairs,
        val=str(tmp_path / "val"),
        recipe="lit",
        set=options,
        out=tmp_path / "t.safetensors",
        device="cpu",
    )
    assert tuned.manifest.model.labels == tuple(sorted(COLOURS))
    (result,) = hs.evaluate([tuned.path], data=str(tmp_path / "val"), device="cpu").report.results
    assert tuned.trained.log[-1]["val_accuracy"] == result.id.accuracy
    assert tuned.trained.log[-1]["val_nll"] == pytest.approx(result.id.nll, abs=1e-5)


def test_tokens_are_open_clips(clip: Path) -> None:
    import open_clip

    read = hs.load(clip, device="cpu").module.tokenize
    texts = ["a photo of a cat", "x" * 400, "", "Ünïcode & <html>"]
    theirs = open_clip.get_tokenizer(f"local-dir:{clip}")(texts)
    assert theirs.shape == (4, CLIP["text_cfg"]["context_length"])
    assert torch.equal(read(texts), theirs)
