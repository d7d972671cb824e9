"""Low-rank pairs: halves that are lost, misnamed, of other shapes, dtypes and values, in members and a hydra of them,
with hashes made to fit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.bases import Bases, Checkpoint, packed
from fuzz.guard import Attempt
from fuzz.kinds.manifests import use, weights_hash

EXITS = {0, 1, 3, 4}
"""1: what `verify` looked at does not hold."""

Stored = tuple[str, list[int], bytes]
"""Dtype, shape and bytes of a tensor."""
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}
"""Of a number of each dtype that is tried."""


def make(random: Random, bases: Bases) -> Attempt:
    base = random.choice(bases.paired)
    tensors = _parts(base)
    for change in random.choices(*random.choice(MIXES), k=random.choice((1, 1, 1, 2, 3))):
        halves = [name for name in tensors if ".lora_" in name]
        if halves:
            change(tensors, random.choice(halves), random)
    content = _file(base, tensors)
    further = random.choice((0.6, 0.95, 0.95, 0.99))
    command = random.choice(
        (
            ("inspect", "{}/x.safetensors", "--json"),
            ("verify", "{}/x.safetensors"),
            ("prune", "{}/x.safetensors", "--method", "random", "--keep", "1", "-o", "{out}/p.safetensors"),
            ("prune", "{}/x.safetensors", "--method", "random", "--remove", "2", "-o", "{out}/p/"),
            ("fuse", "{}/x.safetensors", "{}/x.safetensors", "--weights", "2,1", "-o", "{out}/h.safetensors"),
        )
    )
    return Attempt({"x.safetensors": content}, lambda folder, out: use(folder / "x.safetensors", out, further), command)


def _parts(base: Checkpoint) -> dict[str, Stored]:
    parts = {}
    for name, entry in base.header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            parts[name] = (entry["dtype"], list(entry["shape"]), base.body[begin:end])
    return parts


def _file(base: Checkpoint, tensors: dict[str, Stored]) -> bytes:
    header: dict[str, Any] = {}
    body = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    manifest = {**base.manifest, "weights_sha256": weights_hash(header, body)}
    text = json.dumps(manifest)
    for i, member in enumerate(manifest.get("members", [])):
        # Its hash stands in the history too.
        text = text.replace(member["sha256"], weights_hash(_of_member(header, i), body))
    header["__metadata__"] = {"hydrasurgeon": text}
    return packed(json.dumps(header), body)


def _of_member(header: dict[str, Any], i: int) -> dict[str, Any]:
    """What all members share, and its own by their plain names."""
    own = f"members.{i}."
    shared = {name: entry for name, entry in header.items() if not name.startswith("members.")}
    return shared | {name.removeprefix(own): entry for name, entry in header.items() if name.startswith(own)}


def _lost(tensors: dict[str, Stored], name: str, random: Random) -> None:
    del tensors[name]


def _misnamed(tensors: dict[str, Stored], name: str, random: Random) -> None:
    """Beside another tensor, a half of a half, or of nothing."""
    whole, _, half = name.rpartition(".")
    other = random.choice(list(tensors))
    tensors[
        random.choice(
            (
                f"{other}.{half}",
                f"{name}.{half}",
                f"{whole}.lora_c",
                f"x.{half}",
                half,
                f"members.1.{name}",
                name.removeprefix("members.0."),
            )
        )
    ] = tensors.pop(name)


def _reshaped(tensors: dict[str, Stored], name: str, random: Random) -> None:
    dtype, shape, _ = tensors[name]
    rank = random.choice((0, 1, 3, 40, 1000))
    high, wide = shape if len(shape) == 2 else (2, 32)
    changed = random.choice(
        ([wide, high], [rank, wide], [high, rank], [high, 1, wide], [high * wide], [0, 0], [high, wide + 1], [])
    )
    count = 1
    for size in changed:
        count *= size
    tensors[name] = (dtype, changed, b"\0" * (count * BYTES[dtype]))


def _retyped(tensors: dict[str, Stored], name: str, random: Random) -> None:
    _, shape, content = tensors[name]
    count = 1
    for size in shape:
        count *= size
    dtype = random.choice(list(BYTES))
    length = count * BYTES[dtype]
    made = (content * (1 + length // max(1, len(content))))[:length]
    tensors[name] = (dtype, shape, b"\1" * length if dtype == "BOOL" else made)


def _revalued(tensors: dict[str, Stored], name: str, random: Random) -> None:
    """Numbers that are none, or whose products are none."""
    dtype, shape, content = tensors[name]
    if dtype == "F32" and content:
        number = struct.pack("<f", random.choice((float("nan"), float("inf"), 3e38, -3e38, 1e-45)))
        whole = random.random() < 0.5
        tensors[name] = (dtype, shape, number * (len(content) // 4) if whole else number + content[4:])


def _reranked(tensors: dict[str, Stored], name: str, random: Random) -> None:
    """Both halves of another rank, which is a pair; the rank may be more than the matrix has."""
    whole = name.rpartition(".")[0]
    rank = random.choice((1, 3, 40, 300))
    for half, axis in ((f"{whole}.lora_a", 0), (f"{whole}.lora_b", 1)):
        if half not in tensors or len(tensors[half][1]) != 2:
            continue
        dtype, shape, _ = tensors[half]
        changed = [rank if i == axis else size for i, size in enumerate(shape)]
        tensors[half] = (dtype, changed, random.randbytes(1) * (changed[0] * changed[1] * BYTES[dtype]))


BREAKING = (_lost, _misnamed, _reshaped, _retyped)
"""Most of these make no pair."""
FITTING = (_retyped, _revalued, _reranked)
"""Most of these leave one."""
MIXES: tuple[tuple[tuple[Callable[[dict[str, Stored], str, Random], None], ...], tuple[int, ...]], ...] = (
    (BREAKING, (1, 1, 1, 1)),
    (FITTING, (1, 3, 4)),
    (FITTING, (1, 3, 4)),
    (FITTING, (1, 3, 4)),
)
"""What is drawn from, and how often each: three of four inputs are meant to get past the layout."""
