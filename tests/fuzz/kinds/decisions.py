"""Decision states at work: numbers near float32's end, hashes of rows that are none, and tables that mean nothing,
with hashes that fit; what answers, measures or calibrates by them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.bases import Bases, Checkpoint, packed
from fuzz.guard import Attempt
from fuzz.hostile import scalar, to_json, words

EXITS = {0, 3, 4, 5}
PREFIX = "hydrasurgeon.decision."
BEYOND = (3.4e38, -3.4e38, 3.5e38, 1e39, 1e308, -1e308, 1.2e-38, 1e-45, 5e-324, 1.1e18, 9e-19)
"""Numbers at the ends of float32 and of float64, and just beyond the bounds."""
WITHIN = (
    1e18,
    -1e18,
    1e17,
    -1e9,
    1e9,
    1e-18,
    1e-9,
    0.0,
    -0.0,
    0.5,
    0.999999,
    1.0,
    -1.0,
    16777216.0,
)
"""Numbers that are taken where any number is."""
SEEN = words(
    "AAAA AAA= AA== A ==== AAAAAA== AAAAAAAAAAA= AQAAAAEAAAA= AgAAAAEAAAA= AQAAAAIAAAA= é_-+"
)


def make(random: Random, bases: Bases) -> Attempt:
    base = random.choice([each for each in bases.checkpoints if each.manifest.get("decision")])
    manifest, body = base.manifest, bytearray(base.body)
    del manifest["record_sha256"]
    for _ in range(random.choice((1, 1, 2))):
        random.choice(WAYS)(base, manifest, body, random)
    manifest["weights_sha256"] = sealed(base, body)
    metadata = {**base.header["__metadata__"], "hydrasurgeon": to_json(manifest)}
    header = to_json({**base.header, "__metadata__": metadata})
    data = bases.table(base)
    name = f"d{data.suffix}"
    further = random.random()
    return Attempt(
        {"x.safetensors": packed(header, bytes(body)), name: data},
        lambda folder, out: use(folder / "x.safetensors", str(folder / name), out, further),
        _command(random, name),
    )


def _command(random: Random, name: str) -> tuple[str, ...]:
    how = ("{}/x.safetensors", "--data", f"{{}}/{name}", "--engine", "torch", "--device", "cpu")
    return random.choice(
        (
            ("predict", *how),
            ("predict", *how, "-o", "{out}/p.csv"),
            ("eval", *how, "--json", "-"),
            ("calibrate", *how, "--ood-score", "msp", "-o", "{out}/c.safetensors"),
        )
    )


def use(path: Path, data: str, out: Path, further: float) -> None:
    """Answer by it, measure it, or calibrate again; each number must be one, in float32 too."""
    import hydrasurgeon as hs

    how: dict[str, Any] = {"data": data, "device": "cpu", "engine": "torch"}
    if further < 0.4:
        finite(hs.predict(path, **how))
    elif further < 0.7:
        hs.evaluate([path], json=out / "r.json", **how)
        finite(json.loads((out / "r.json").read_text()))
    else:
        hs.calibrate(path, ood_score="msp", out=out / "c.safetensors", **how)


def finite(value: Any) -> None:
    """Fail for a number that JSON, or a client that reads float32, has no word for."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            finite(each)
    elif isinstance(value, float):
        assert abs(value) < 3.5e38, value  # nor is NaN


def sealed(base: Checkpoint, body: bytes | bytearray) -> str:
    """The hash of all tensors, as the manifest holds it."""
    total = hashlib.sha256()
    for name in sorted(set(base.header) - {"__metadata__"}):
        entry = base.header[name]
        start, end = entry["data_offsets"]
        digest = hashlib.sha256(body[start:end]).hexdigest()
        shape = ",".join(map(str, entry["shape"]))
        total.update(f"{name}\0{entry['dtype']}\0{shape}\0{digest}\n".encode())
    return total.hexdigest()


def _numbers(holder: Any) -> list[tuple[Any, Any]]:
    """Where numbers stand in a document."""
    found = []
    for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(value, dict | list):
            found += _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((holder, key))
    return found


def _number(base: Checkpoint, manifest: Any, body: bytearray, random: Random) -> None:
    places = _numbers(manifest["decision"])
    holder, key = random.choice(places)
    if isinstance(holder[key], int):
        holder[key] = random.choice((0, 1, 2, holder[key] + 1, 2**31 - 1, 2**31, 2**63, -1))
    else:
        holder[key] = random.choice((*WITHIN, *WITHIN, *BEYOND, holder[key] * 1e9, -holder[key]))


def _field(base: Checkpoint, manifest: Any, body: bytearray, random: Random) -> None:
    decision = manifest["decision"]
    holder = random.choice([decision, *(v for v in decision.values() if isinstance(v, dict))])
    if holder:
        holder[random.choice(list(holder))] = scalar(random)


def _seen(base: Checkpoint, manifest: Any, body: bytearray, random: Random) -> None:
    records = [data for step in manifest["history"] for data in step["data"]]
    if records:
        random.choice(records)["seen"] = random.choice(SEEN)


def _table(base: Checkpoint, manifest: Any, body: bytearray, random: Random) -> None:
    """A tensor of the state, with numbers that are finite."""
    names = [name for name in base.header if name.startswith(PREFIX)]
    if not names:
        return
    start, end = base.header[random.choice(names)]["data_offsets"]
    values = np.frombuffer(bytes(body[start:end]), "<f4").astype("f8")
    if not len(values):
        return
    what = random.randrange(6)
    if what == 0:
        values[:] = random.choice((*WITHIN, *BEYOND))
    elif what == 1:
        values[random.randrange(len(values))] = random.choice((*WITHIN, *BEYOND))
    elif what == 2:
        values = values[::-1]
    elif what == 3:
        values = values + random.choice((0.5, -1, 1e3, 2**24))
    elif what == 4:
        values = -values
    else:
        values = values * random.choice((1e30, 1e-30, 0))
    body[start:end] = values.clip(-3.4e38, 3.4e38).astype("<f4").tobytes()


WAYS = (*[_number] * 6, *[_table] * 3, _field, _seen)
