"""Predictions files with a changed description, numbers near float32's end, and axes that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.bases import Bases, packed
from fuzz.guard import Attempt
from fuzz.hostile import damaged, mutated, to_json

EXITS = {0, 3, 5}
ABOUT = "hydrasurgeon.predictions"
ROWS, CLASSES, WIDTH = 60, 3, 4
NUMBERS = (3.4e38, -3.4e38, 1e20, -1e20, 1e-45, 0.0, 1e3, np.nan, np.inf, -np.inf)


def arrays() -> dict[str, np.ndarray]:
    """Answers that know something of their labels; features, and OOD samples with a score."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % CLASSES
    logits = rng.normal(size=(ROWS, 2, CLASSES)) + 2.5 * np.eye(CLASSES)[labels][:, None]
    return {
        "logits": logits.astype("f4"),
        "labels": labels.astype("i8"),
        "features": rng.normal(size=(ROWS, 2, WIDTH)).astype("f4"),
        "ood.a.logits": rng.normal(size=(30, 2, CLASSES)).astype("f4"),
        "ood.a.features": rng.normal(size=(30, 2, WIDTH)).astype("f4"),
    }


GOOD: dict[str, Any] = {"name": "theirs", "kind": "hydra", "ood": [["a", "near"]]}


def make(random: Random, bases: Bases) -> Attempt:
    tensors, about = arrays(), to_json(GOOD)
    for _ in range(random.choice((1, 1, 2))):
        way = random.randrange(6)
        name = random.choice(list(tensors))
        if way == 0:
            about = to_json(mutated(GOOD, random))
        elif way == 1:
            tensors[name].reshape(-1)[random.randrange(tensors[name].size)] = _number(
                tensors[name], random
            )
        elif way == 2:
            tensors[name][...] = _number(tensors[name], random)
        elif way == 3:
            tensors[name] = _shaped(tensors[name], random)
        elif way == 4 and len(tensors) > 1:
            del tensors[name]
        else:
            kind = random.choice(("f8", "f4", "i8", "u1", "i4", "f2"))
            with np.errstate(all="ignore"):
                tensors[name] = tensors[name].astype(kind)
    content = written(tensors, about)
    if random.random() < 0.05:
        content = damaged(content, random)
    further = random.random()
    return Attempt(
        {"p.safetensors": content, "good.safetensors": written(arrays(), to_json(GOOD))},
        lambda folder, out: use(folder, out, further),
        random.choice(
            (
                ("calibrate", "--predictions", "{}/p.safetensors", "-o", "{out}/d.safetensors"),
                ("eval", "--predictions-in", "{}/p.safetensors", "--json", "-"),
                (
                    *("eval", "--predictions-in", "{}/p.safetensors", "{}/good.safetensors"),
                    *("--ensemble", "--json", "-"),
                ),
            )
        ),
    )


def use(folder: Path, out: Path, further: float) -> None:
    """Calibrate by them and decide, measure them, or join them with others."""
    import hydrasurgeon as hs

    path, good = folder / "p.safetensors", folder / "good.safetensors"
    if further < 0.3:
        hs.calibrate(predictions=path, out=out / "d.safetensors")
    elif further < 0.5:
        hs.calibrate(predictions=good, ood_score="msp", out=out / "d.safetensors")
        rows = hs.predict(decision=out / "d.safetensors", predictions=path)
        json.dumps(rows, allow_nan=False, default=str)
    elif further < 0.8:
        hs.evaluate(predictions_in=[path], json=out / "r.json")
    else:
        hs.evaluate(predictions_in=[path, good], ensemble=True, json=out / "r.json")


def written(tensors: dict[str, np.ndarray], about: str) -> bytes:
    """A safetensors file."""
    names = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i4": "I32", "u1": "U8"}
    header: dict[str, Any] = {"__metadata__": {ABOUT: about}}
    body = b""
    for name, array in tensors.items():
        content = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": names[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(content)],
        }
        body += content
    return packed(json.dumps(header), body)


def _number(array: np.ndarray, random: Random) -> Any:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(random.choice(NUMBERS)).astype(array.dtype)
    return random.choice((0, 1, 2, 3, 100))


def _shaped(array: np.ndarray, random: Random) -> np.ndarray:
    return random.choice(
        (
            array[:1],
            array[:0],
            array[..., :1],
            array[..., None],
            array.reshape(-1),
            np.concatenate([array, array]),
            array.swapaxes(0, -1),
        )
    )
