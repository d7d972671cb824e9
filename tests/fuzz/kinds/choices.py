"""Small files that choose: --mask, recipes, class names, templates."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from random import Random
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Attempt, Fifo, Link
from fuzz.hostile import damaged, mutated, scalar, text, to_json, value

# They belong to a command line: what is wrong with them is wrong usage, or a cut that cannot be made.
EXITS = {0, 2, 4}


def make(random: Random, bases: Bases) -> Attempt:
    return random.choice((_mask, _mask, _mask, _recipe, _recipe, _names))(random, bases)


def _mask(random: Random, bases: Bases) -> Attempt:
    from hydrasurgeon.criteria.selection import kept_from_file
    from hydrasurgeon.files.manifest import parse_manifest

    base = bases.checkpoint(
        random.choice(("scored", "member-0", "clip-0" if "OpenCLIP" in (bases.families or ("OpenCLIP",)) else "scored"))
    )
    manifest = parse_manifest(json.dumps(base.manifest), "base")
    kept = base.manifest["kept"]
    masks = {
        tower: [[head in row for head in range(base.manifest["towers"][tower]["heads"])] for row in rows]
        for tower, rows in kept.items()
    }
    document = random.choice(
        (
            kept,
            masks,
            {"kept": kept},
            {"mask": masks},
            base.manifest,
            next(iter(kept.values())),
            next(iter(masks.values())),
            {"kept": {"mask": kept}},
        )
    )
    content = _written(document, random)
    if random.random() < 0.02:
        content = b'{"kept":' * 20_000 + b"1" + b"}" * 20_000
    name = "mask.json"

    def call(folder: Path, out: Path) -> object:
        return kept_from_file(folder / name, manifest)

    files: dict[str, Any] = {name: _or_odd(content, random)}
    return Attempt(
        files, call, ("prune", str(bases.path(base.name)), "--mask", "{}/" + name, "-o", "{out}/p.safetensors")
    )


@cache
def _recipes() -> tuple[str, ...]:
    folder = resources("hydrasurgeon.tuning.recipes")
    return tuple(sorted(entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".toml")))


def _recipe(random: Random, bases: Bases) -> Attempt:
    from hydrasurgeon.tuning.recipes import load_recipe

    source = random.choice(_recipes())
    document = tomllib.loads(source)
    for _ in range(random.randint(1, 3)):
        key = random.choice(
            (*document, "steps", "epochs", "augment", "freeze", "batch_size", "lr", "warmup", "betas", text(random))
        )
        how = random.randrange(3)
        if how == 0:
            document.pop(key, None)
        else:
            document[key] = random.choice(
                (
                    scalar(random),
                    [scalar(random), scalar(random)],
                    {
                        "hflip": scalar(random),
                        "pad_crop": scalar(random),
                        "random_resized_crop": [scalar(random), scalar(random)],
                    },
                )
            )
    content = "".join(f"{json.dumps(key)} = {_toml(one)}\n" for key, one in document.items()).encode(
        "utf-8", "surrogatepass"
    )
    if random.random() < 0.1:
        content = damaged(content, random)
    if random.random() < 0.02:
        content = random.choice(
            (b"a = " + b"[" * 50_000, b"[" + b"a." * 2000 + b"a]", b"a." * 2000 + b"b = 1", b"x = " + b"1" * 10_000)
        )
    options = {
        random.choice(("lr", "steps", "augment.hflip", "betas", "freeze", text(random))): random.choice(
            (text(random), to_json(value(random)), "1e-3")
        )
        for _ in range(random.choice((0, 0, 1)))
    }

    def call(folder: Path, out: Path) -> object:
        return load_recipe(folder / "r.toml", options)

    sets = [part for key, one in options.items() for part in ("--set", f"{key}={one}")]
    command = (
        "finetune",
        str(bases.path("scored")),
        "--data",
        "{}/no.npz",
        "--recipe",
        "{}/r.toml",
        "-o",
        "{out}/t.safetensors",
        *sets,
    )
    return Attempt(
        {"r.toml": _or_odd(content, random)},
        call,
        command if not any("\0" in part for part in command) else command[:-2],
    )


def _toml(part: Any) -> str:
    if isinstance(part, bool):
        return str(part).lower()
    if isinstance(part, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in part.items()) + "}"
    if isinstance(part, list | tuple):
        return "[" + ", ".join(map(_toml, part)) + "]"
    if part is None:
        return '""'
    return to_json(part).replace("NaN", "nan").replace("Infinity", "inf")


def _names(random: Random, bases: Bases) -> Attempt:
    from hydrasurgeon.families.prompts import read_labels, read_templates

    ending = random.choice((".txt", ".json"))
    names = [random.choice((text(random), "cat", "dog", "a {label}")) for _ in range(random.choice((0, 1, 2, 3, 1000)))]
    document: Any = "\n".join(names) if ending == ".txt" else names
    content = document.encode("utf-8", "surrogatepass") if isinstance(document, str) else _written(document, random)
    if random.random() < 0.2:
        content = damaged(content, random)
    labels = random.random() < 0.6

    def call(folder: Path, out: Path) -> object:
        path = str(folder / f"names{ending}")
        return read_labels(path) if labels else read_templates([path])

    source = (
        str(bases.directory("OpenCLIP"))
        if "OpenCLIP" in (bases.families or ("OpenCLIP",))
        else str(bases.path("scored"))
    )
    more = ("--classes", "{}/names" + ending) if labels else ("--template", "{}/names" + ending)
    command = ("score", source, "--method", "random", "-o", "{out}/s.safetensors", *more)
    return Attempt({f"names{ending}": _or_odd(content, random)}, call, command)


def _written(document: Any, random: Random) -> bytes:
    content = to_json(mutated(document, random)).encode("utf-8", "surrogatepass")
    return damaged(content, random) if random.random() < 0.1 else content


def _or_odd(content: bytes, random: Random) -> Any:
    """Now and then no regular file at all."""
    return (
        random.choice((Fifo(), Link("/dev/zero"), Link("nowhere"), Link("."))) if random.random() < 0.003 else content
    )
