"""Tiny stand-ins for the weights and data of the pipelines in this folder, and one process that runs their commands.

smoke.py make PAPER FOLDER    writes them into FOLDER/stand-ins; prints shell variables that take the place of the
pipeline's
smoke.py serve                runs commands that come as NUL-separated words on stdin, and answers each with its exit
code
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np

CLASSES = ("cat", "dog", "bird")
WORDS = ("good", "bad", "dull", "fine", "film", "plot", "very", "not", "a", "the")
# Samples of each set.
COUNT = 24
SIZES = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 3, "num_heads": 4}
SHORT = {"steps": 2, "warmup": 0, "batch_size": 8}
"""Fields of recipes."""


def images(path: Path, seed: int, *, labels: bool = True) -> Path:
    """Write images whose class is the position of a bright band; OOD images have none."""
    rng = np.random.default_rng(seed)
    truth = np.arange(COUNT) % len(CLASSES)
    pixels = rng.integers(0, 100, (COUNT, 28, 28, 3), dtype=np.uint8)
    for i, label in enumerate(truth if labels else ()):
        pixels[i, 9 * label : 9 * label + 9] = 230
    np.savez(
        path, images=pixels, **({"labels": truth, "classes": np.array(CLASSES)} if labels else {})
    )
    return path


def texts(path: Path, seed: int, *, labels: bool = True) -> Path:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(COUNT):
        words = rng.choice(WORDS[2:], size=rng.integers(2, 6)).tolist()
        rows.append(
            {"text": " ".join([WORDS[i % 2], *words]), "label": i % 2}
            if labels
            else {"text": " ".join(words)}
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def vit(folder: Path) -> str:
    """Write a model directory in timm's format."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_224", num_classes=len(CLASSES), **SIZES)
    about = {
        "architecture": "vit_base_patch16_224",
        "num_classes": len(CLASSES),
        "model_args": SIZES,
        "pretrained_cfg": {"input_size": [3, 28, 28], "crop_pct": 1.0},
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(about))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def bert(folder: Path) -> str:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = {w: i for i, w in enumerate(("[CLS]", "[PAD]", "[SEP]", "[UNK]", *WORDS))}
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    BertForSequenceClassification(
        BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, pad_token_id=1, **sizes)
    ).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_max_length=24,
    ).save_pretrained(folder)
    return str(folder)


def clip(folder: Path) -> str:
    import open_clip
    import torch
    from safetensors.torch import save_file

    sizes = {
        "embed_dim": 16,
        "vision_cfg": {
            "image_size": 28,
            "patch_size": 7,
            "layers": 3,
            "width": 32,
            "head_width": 8,
        },
        "text_cfg": {"context_length": 12, "width": 32, "heads": 4, "layers": 3},
    }
    torch.manual_seed(0)
    model = open_clip.CLIP(**json.loads(json.dumps(sizes)))
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes}))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors", metadata={"format": "pt"})
    return str(folder)


def make(paper: str, out: Path) -> str:
    """Return variable assignments in bash."""
    folder = out / "stand-ins"
    folder.mkdir()
    suffix, write = (".jsonl", texts) if paper == "sst2" else (".npz", images)
    labelled_sets = {
        name: write(folder / f"{name}{suffix}", i)
        for i, name in enumerate(("train", "val", "test"))
    }
    ood_files = {
        name: write(folder / f"{name}{suffix}", 10 + i, labels=False)
        for i, name in enumerate(("chooses", "near", "far"))
    }
    fields = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
    variables: dict[str, str | list[str]] = {
        "train": str(labelled_sets["train"]),
        "val": str(labelled_sets["val"]),
        "test": str(labelled_sets["test"]),
        "found": str(labelled_sets["train"]),
        "limit": "16",
        "chooses": str(ood_files["chooses"]),
        "near": ["--ood", f"near:near={ood_files['near']}"],
        "far": ["--ood", f"far:far={ood_files['far']}"],
        "remove": "4",
        "pool": "6",
        "keep": "3",
        "shorter": fields,
    }
    if paper == "clip":
        (folder / "names.txt").write_text("\n".join(CLASSES) + "\n")
        variables |= {
            "single": clip(folder / "clip"),
            "names": str(folder / "names.txt"),
            "sets": [
                "--data",
                f"in1k={labelled_sets['test']}",
                "--data",
                f"c100={labelled_sets['val']}",
            ],
        }
    else:
        variables["pretrained"] = (bert if paper == "sst2" else vit)(folder / "pretrained")
    return "\n".join(f"{name}={quoted(value)}" for name, value in variables.items())


def quoted(value: str | list[str]) -> str:
    return shlex.quote(value) if isinstance(value, str) else f"({shlex.join(value)})"


def serve() -> None:
    from hydrasurgeon.cli.app import run

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what commands print is no reply
    words = iter(lambda: next_word(), None)
    for count in words:
        command = [next(words) or "" for _ in range(int(count))]
        code = run(command)
        replies.write(f"{code}\n")
        replies.flush()


def next_word() -> str | None:
    """Return the text up to the next NUL; None at the end."""
    word = bytearray()
    while (byte := sys.stdin.buffer.read(1)) != b"\0":
        if not byte:
            return None
        word += byte
    return word.decode()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        sys.stdout.write(make(sys.argv[2], Path(sys.argv[3])) + "\n")
    else:
        serve()
