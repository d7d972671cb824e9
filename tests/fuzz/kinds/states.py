"""States of interrupted trainings: what a command that goes on would believe."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.bases import Bases, packed, unpacked
from fuzz.guard import Attempt
from fuzz.hostile import damaged, mutated, scalar, text, to_json, value

# A state that is of no use is a wrong command, or a file that cannot be read.
EXITS = {0, 2, 3}


def _images(folder: Path) -> Path:
    """Six images of three classes."""
    path = folder / "id.npz"
    if not path.exists():
        images = np.random.default_rng(0).integers(0, 255, (6, 28, 28, 3), dtype=np.uint8)
        np.savez(path, images=images, labels=np.arange(6) % 3)
    return path


def _hashed(texts: dict[str, str], weights: str) -> dict[str, str]:
    """With the hash that its writer would have given it: what is behind the hash is to be tried."""
    from hydrasurgeon.files.resumable import content_hash

    plain = {name: text for name, text in texts.items() if name != "sha256"}
    return {**plain, "sha256": content_hash(plain, weights)}


@cache
def _trained() -> tuple[dict[str, Any], bytes]:
    """The identity and the file of an interrupted training of the small module."""
    import tempfile

    from hydrasurgeon.tuning.state import TrainingState

    identity = {
        "checkpoint": "0" * 64,
        "data": [{"spec": "d.npz", "rows": 6, "sha256": "1" * 64}],
        "recipe": {"lr": 0.1},
        "seed": 0,
        "dtype": "float32",
    }
    model, optimizer = _module()
    with tempfile.TemporaryDirectory() as folder:
        state = TrainingState(Path(folder) / "t.training.safetensors", identity)
        state.write(
            model, optimizer, {"step": 3, "loss_sum": 1.5, "loss_count": 2, "log": [{"epoch": 1.0, "loss": 0.5}]}
        )
        return identity, state.path.read_bytes()


def _module() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def _renamed_or_reshaped(header: dict[str, Any], what: int, random: Random) -> None:
    """One tensor less, under another name, or as something else."""
    name = random.choice([name for name in header if name != "__metadata__"])
    if what == 5:
        header[name]["shape"] = random.choice((header[name]["shape"][::-1], [1, *header[name]["shape"]], [-1]))
        header[name]["dtype"] = random.choice(("F32", "F32", "I32", "U32"))
        return
    entry = header.pop(name)
    if random.random() < 0.7:
        names = (
            "optimizer.9.exp_avg",
            "optimizer.x.exp_avg",
            "optimizer.0",
            "optimizer.0.exp_avg.x",
            "optimizer.-1.step",
            "model.extra",
            text(random),
            name.upper(),
        )
        header[random.choice(names)] = entry


def _hash_anew(header: Any, body: bytes) -> None:
    """The hash of these tensors and texts, where they are such."""
    from hydrasurgeon.files.header import TensorInfo
    from hydrasurgeon.files.tensors import weights_sha256

    with suppress(AttributeError, KeyError, TypeError, ValueError):
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        infos = {n: TensorInfo(n, e["dtype"], tuple(e["shape"]), 0, 0) for n, e in entries.items()}
        digests = {n: sha256(body[slice(*e["data_offsets"])]).hexdigest() for n, e in entries.items()}
        texts = dict(header["__metadata__"])
        plain = {"format": texts.pop("format")}
        header["__metadata__"] = plain | _hashed(texts, weights_sha256(infos, digests))


def make(random: Random, bases: Bases) -> Attempt:
    identity, content = _trained()
    header, body = unpacked(content)
    texts = header["__metadata__"]
    what = random.randrange(8)
    if what == 0:
        header = mutated(header, random)
    elif what <= 2:
        document = json.loads(texts["position"])
        texts["position"] = to_json(
            mutated(document, random)
            if random.random() < 0.7
            else {**document, random.choice(("step", "loss_sum", "loss_count", "log")): scalar(random)}
        )
    elif what == 3:
        texts["identity"] = to_json(mutated(json.loads(texts["identity"]), random))
    elif what <= 5:
        _renamed_or_reshaped(header, what, random)
    elif what == 6:
        body = random.choice((b"\xff" * len(body), body[:-4], body + b"x", bytes(len(body))))
    else:
        header["__metadata__"] = random.choice(
            (value(random), {}, {"identity": texts["identity"]}, mutated(texts, random))
        )
    if random.random() < 0.9:
        _hash_anew(header, body)
    said = packed(to_json(header), body)
    if random.random() < 0.1:
        said = damaged(said, random)
    name = "t.training.safetensors"

    def call(folder: Path, out: Path) -> object:
        from hydrasurgeon.tuning.state import TrainingState

        return TrainingState(folder / name, identity).read(*_module())

    data = _images(bases.folder)
    command = (
        f"finetune {bases.path('scored')} --data {data} --recipe scratch --set steps=1 --device cpu --quiet --resume"
    )
    return Attempt({name: said}, call, (*command.split(), "-o", "{}/t.safetensors"), writes=True)
