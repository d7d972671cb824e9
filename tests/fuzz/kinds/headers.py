"""Safetensors headers: lengths, offsets, shapes, dtypes, names, metadata, and what the bytes say instead."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from fuzz.bases import Bases, packed
from fuzz.guard import Attempt
from fuzz.hostile import NUMBERS, damaged, mutated, scalar, text, to_json, value
from hydrasurgeon.files.header import ITEMSIZE

# A header may also describe a model that cannot be cut.
EXITS = {0, 3, 4}


def make(random: Random, bases: Bases) -> Attempt:
    base = random.choice(bases.checkpoints)
    # Most faults are seen in a few tensors; the whole model is needed by those that reach further.
    header = base.header if random.random() < 0.2 else _small(base.header, random)
    body = base.body if header is base.header else base.body[: random.choice((0, 64, 4096))]
    content = random.choice(WAYS)(header, body, random)
    name = "x.safetensors"
    files: dict[str, Any] = {name: content}
    if random.random() < 0.1:
        files["x.heads.json"] = json.dumps(base.manifest).encode()
    return Attempt(files, lambda folder, out: use(folder / name), ("inspect", "{}/" + name, "--json"))


def use(path: Path) -> None:
    """Everything that is asked of an opened file; what we take, the library must take, and find the same in it."""
    from safetensors import safe_open

    from hydrasurgeon.checkpoints.reading import open_checkpoint
    from hydrasurgeon.files.tensors import TensorFile, Tensors

    opened = TensorFile(path)
    with safe_open(str(path), framework="np") as other:
        names = set(other.keys())
        assert names == set(opened.infos), "we see other tensors than safetensors does"
        for name in names:
            seen = other.get_slice(name)
            assert tuple(seen.get_shape()) == opened.infos[name].shape, f"{name}: another shape than safetensors sees"
    tensors = Tensors([opened])
    for name in tensors:
        tensors.read(name)
    open_checkpoint(path)


def _small(header: dict[str, Any], random: Random) -> dict[str, Any]:
    """A few tensors, packed anew."""
    names = [name for name in header if name != "__metadata__"]
    chosen = random.sample(names, min(len(names), random.choice((0, 1, 2, 4))))
    made: dict[str, Any] = {"__metadata__": dict(header["__metadata__"])} if random.random() < 0.5 else {}
    at = 0
    for name in chosen:
        dtype = random.choice(list(ITEMSIZE))
        shape = random.choice(([], [0], [1], [2, 3], [4, 4], [2, 0, 3]))
        count = ITEMSIZE[dtype]
        for size in shape:
            count *= size
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    return made


def _fields(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    return packed(to_json(mutated(header, random)), body)


def _one_tensor(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    """One entry changed: the places that decide what is read from where."""
    changed = {name: dict(entry) for name, entry in header.items()}
    names = [name for name in changed if name != "__metadata__"]
    if not names:
        return _fields(header, body, random)
    entry = changed[random.choice(names)]
    what = random.choice(("dtype", "shape", "data_offsets", "extra", "missing"))
    if what == "dtype":
        entry["dtype"] = random.choice((*ITEMSIZE, "F4", "f32", "C64", "", 0, None, "F32 ", ["F32"]))
    elif what == "shape":
        shape = entry["shape"]
        entry["shape"] = random.choice(
            (
                *([*shape, 1], shape[::-1], [random.choice(NUMBERS)], [-1, -1], [2**32, 2**32], [0, 2**70], [1] * 100),
                *([True, 1], {"0": 1}, "12", 3, [[1]], [float(n) for n in shape], [1] * 5000),
            )
        )
    elif what == "data_offsets":
        a, b = entry["data_offsets"]
        entry["data_offsets"] = random.choice(
            (
                *([b, a], [a, b + 1], [a + 4, b + 4], [-4, b - a - 4], [a - 8, b - 8], [0, b - a], [a], [a, b, b], a),
                *([2**63, 2**63 + b - a], [float(a), b], [str(a), str(b)], None, [2**64 - 8, b], [False, b]),
            )
        )
    elif what == "extra":
        entry[text(random)] = value(random)
    else:
        del entry[random.choice(list(entry))]
    return packed(to_json(changed), body)


def _names(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    """A tensor under another name: of another member, of none, twice."""
    pairs = list(header.items())
    at = random.randrange(len(pairs) or 1)
    if not pairs:
        return packed("{}", body)
    name, entry = pairs[at]
    prefixes = ("members.0.", "members.9.", "members.-1.", "members.1.", "hydrasurgeon.decision.")
    others = (text(random), name.upper(), random.choice(pairs)[0], name + "\u0301", "__metadata__")
    other = random.choice((*(prefix + name for prefix in prefixes), *others))
    said = [f"{json.dumps(n)}:{to_json(e)}" for n, e in pairs]
    said[at] = f"{json.dumps(other)}:{to_json(entry)}"
    if random.random() < 0.5:
        said.append(f"{json.dumps(name)}:{to_json(entry)}")
    return packed("{" + ",".join(said) + "}", body)


def _metadata(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    """The texts beside the tensors: their types, our keys, companions that nobody asked for."""
    changed = dict(header)
    told: Any = dict(header.get("__metadata__", {}))
    what = random.randrange(5)
    if what == 0:
        told = value(random)
    elif what == 1:
        told[text(random)] = scalar(random)
    elif what == 2:
        files = {text(random): random.choice(("x", text(random), 3)) for _ in range(random.choice((1, 2, 40)))}
        told["hydrasurgeon.files"] = random.choice((json.dumps(files), to_json(value(random)), text(random)))
    elif what == 3:
        told["hydrasurgeon"] = random.choice(
            (
                to_json(value(random)),
                text(random),
                "{}",
                to_json(mutated({"format": "hydrasurgeon.manifest/1"}, random)),
            )
        )
    else:
        told["hydrasurgeon.predictions"] = to_json(value(random))
    changed["__metadata__"] = told
    return packed(to_json(changed), body)


def _length(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    raw = json.dumps(header)
    length = random.choice(
        (0, 1, 2, len(raw) - 1, len(raw) + 1, len(raw) + len(body), 2**20, 10**8, 10**8 + 1, 2**31, 2**63, 2**64 - 1)
    )
    return packed(raw, body, length=length)


def _bytes(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    raw = damaged(json.dumps(header).encode(), random)
    content = packed(raw, body)  # type: ignore[arg-type]
    return damaged(content, random) if random.random() < 0.3 else content


def _tail(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    """Too many bytes, or too few."""
    changed = random.choice((body + b"x", body + random.randbytes(100), body[:-1], body[: len(body) // 2], b""))
    return packed(json.dumps(header), changed)


def _large(header: dict[str, Any], body: bytes, random: Random) -> bytes:
    """More entries, deeper or longer than any model's."""
    what = random.randrange(6)
    if what == 0:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        return packed(json.dumps({f"t{i}": empty for i in range(random.choice((100, 300, 300, 2000)))}), b"")
    if what == 1:
        return packed("[" * random.choice((1000, 100_000)), body)
    if what == 2:
        return packed(" " * random.choice((10, 10_000)) + json.dumps(header) + " " * random.choice((0, 7)), body)
    return struct.pack("<Q", 2) + b"{}" + body


WAYS = (
    _fields,
    _fields,
    _one_tensor,
    _one_tensor,
    _one_tensor,
    _names,
    _metadata,
    _metadata,
    _length,
    _bytes,
    _tail,
    _large,
)
