"""Predictions files: anyone's logits, labels and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.bases import Bases, packed
from fuzz.guard import Attempt
from fuzz.hostile import damaged, mutated, text, to_json, value

EXITS = {0, 2, 5}
NAME = "p.safetensors"


def make(random: Random, bases: Bases) -> Attempt:
    tensors = _tensors(random)
    about: Any = {
        "name": "m",
        "kind": "hydra",
        "ood": [["a", "near"], ["b", "far"]],
        "shift": [["fog", 1], ["snow", None]],
        "cost": {"params": 10, "macs": 100},
    }
    for _ in range(random.choice((0, 1, 1, 2))):
        random.choice(CHANGES)(tensors, random)
    if random.random() < 0.5:
        about = mutated(about, random)
    content = _file(tensors, to_json(about) if random.random() < 0.95 else None, random)
    if random.random() < 0.05:
        content = damaged(content, random)
    score, temperature = (
        random.choice(("msp", "entropy", "energy", "max-logit", "mi", "own", "all")),
        random.choice((1.0, 1.0, 0.01, 100.0)),
    )
    command = f"eval --predictions-in {{}}/{NAME} --json - --ood-score {score} --temperature {temperature}".split()
    return Attempt({NAME: content}, lambda folder, out: use(folder / NAME, score, temperature), tuple(command))


def use(path: Path, score: str, temperature: float) -> None:
    """Read, measured, and written as a report."""
    from hydrasurgeon.measuring.predictions import read_predictions
    from hydrasurgeon.measuring.reading import Reading, scores_in
    from hydrasurgeon.measuring.results import Report
    from hydrasurgeon.measuring.rows import row_of

    predictions = read_predictions(path)
    reading = Reading(temperature, ood_scores=scores_in(score, predictions, path.name))
    measured = row_of(predictions, reading).result
    json.loads(Report(settings={}, results=(measured,)).to_json(), parse_constant=_strict)


def _strict(text: str) -> None:
    raise AssertionError(f"{text} in the report")


def _tensors(random: Random) -> dict[str, Any]:
    drawn = np.random.default_rng(random.randrange(2**32))
    rows, members, classes = (random.choice((1, 4, 12)), random.choice((1, 3)), random.choice((2, 3, 5)))

    def logits(n: int) -> Any:
        return drawn.normal(size=(n, members, classes)).astype(random.choice(("f4", "f4", "f8", "f2")))

    return {
        "logits": logits(rows),
        "labels": drawn.integers(0, classes, rows),
        "ood.a.logits": logits(5),
        "ood.b.logits": logits(1),
        "shift.fog.1.logits": logits(4),
        "shift.fog.1.labels": drawn.integers(0, classes, 4),
        "shift.snow.logits": logits(2),
        "shift.snow.labels": drawn.integers(0, classes, 2),
        "scores.own": drawn.normal(size=rows),
        "ood.a.scores.own": drawn.normal(size=5),
        "ood.b.scores.own": drawn.normal(size=1),
    }


def _values(tensors: dict[str, Any], random: Random) -> None:
    name = random.choice(list(tensors))
    array = tensors[name]
    if not array.size:
        return
    flat = array.reshape(-1).copy()
    with np.errstate(all="ignore"):
        special = random.choice((np.nan, np.inf, -np.inf, 1e308, -1e308, 1e30, 0, -1, 2**31, 5e-324))
        try:
            flat[random.randrange(flat.size)] = special
        except (OverflowError, ValueError):
            flat[0] = 255 if flat.dtype.kind == "u" else -1
        if random.random() < 0.2:
            flat[:] = flat[0]
    tensors[name] = flat.reshape(array.shape)


def _shape(tensors: dict[str, Any], random: Random) -> None:
    name = random.choice(list(tensors))
    array = np.atleast_1d(tensors[name])
    tensors[name] = random.choice(
        (
            array[:0],
            array[..., :1],
            array[..., :0],
            array.reshape(-1),
            array[None],
            array[:, None],
            array.T,
            np.concatenate([array, array]),
            array.sum(),
            np.zeros((1, 1, 1), array.dtype),
            np.zeros((0, 3, 5), array.dtype),
            np.zeros((2, 0, 3), array.dtype),
            np.repeat(array, 500, axis=0),
        )
    )


def _dtype(tensors: dict[str, Any], random: Random) -> None:
    name = random.choice(list(tensors))
    with np.errstate(all="ignore"):
        tensors[name] = tensors[name].astype(random.choice(("f8", "f4", "f2", "i8", "i4", "i1", "u1", "?", "i2")))


def _missing(tensors: dict[str, Any], random: Random) -> None:
    del tensors[random.choice(list(tensors))]
    if not tensors:
        tensors["x"] = np.zeros(1)


def _renamed(tensors: dict[str, Any], random: Random) -> None:
    name = random.choice(list(tensors))
    tensors[
        random.choice(
            (
                text(random),
                f"ood.{text(random)}.logits",
                "ood..logits",
                "ood.logits",
                f"shift.{text(random)}.logits",
                "scores.msp",
                "ood.a.scores.msp",
                f"scores.{text(random)}",
                "ood.c.scores.own",
                "shift.fog.1.labels",
            )
        )
    ] = tensors.pop(name)


def _more(tensors: dict[str, Any], random: Random) -> None:
    tensors[
        random.choice((f"ood.{text(random)}.logits", "ood.c.logits", text(random), "scores.rmds", "ood.a.scores.rmds"))
    ] = random.choice(list(tensors.values()))


CHANGES = (_values, _values, _shape, _shape, _dtype, _missing, _renamed, _more)
DTYPES = {
    f"{kind}{size}": f"{name}{8 * size}" for kind, name in zip("fiu", "FIU", strict=True) for size in (1, 2, 4, 8)
}
DTYPES["b1"] = "BOOL"


def _file(tensors: dict[str, Any], about: str | None, random: Random) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    if about is not None:
        header["__metadata__"]["hydrasurgeon.predictions"] = about
    body = b""
    for name, array in tensors.items():
        content = np.ascontiguousarray(array)
        dtype = DTYPES[content.dtype.str[1:]]
        if dtype == "F16" and random.random() < 0.3:
            dtype = "BF16"
        header[name] = {
            "dtype": dtype,
            "shape": list(np.shape(array)),
            "data_offsets": [len(body), len(body) + content.nbytes],
        }
        body += content.tobytes()
    said: Any = header
    if random.random() < 0.1:
        said = mutated(header, random)
    elif random.random() < 0.02:
        header["__metadata__"] = value(random)
    return packed(to_json(said), body)
