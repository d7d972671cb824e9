"""States of interrupted searches and trainings: what a command that goes on would believe."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
SEARCHES = ("exact", "fast", "attribution")


def make(random: Random, bases: Bases) -> Attempt:
    return (_search if random.random() < 0.6 else _training)(random, bases)


def _arrays(folder: Path) -> tuple[str, str]:
    """Six images of three classes, and four of none."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    if not (folder / "ood.npz").exists():
        np.savez(
            folder / "id.npz", images=rng.integers(0, 255, (6, 28, 28, 3), dtype=np.uint8), labels=np.arange(6) % 3
        )
        np.savez(folder / "ood.npz", images=rng.integers(0, 255, (4, 28, 28, 3), dtype=np.uint8))
    return str(folder / "id.npz"), str(folder / "ood.npz")


def _score_options(bases: Bases, search: str) -> dict[str, Any]:
    data, ood = _arrays(bases.folder)
    return {
        "method": "circuit",
        "objective": "avg",
        "data": data,
        "ood": [ood],
        "search": search,
        "remove": 2,
        "layers": "1-2",
        "device": "cpu",
    }


@cache
def _searches(bases: Bases) -> dict[str, tuple[Any, Any, int, Any, str, bytes]]:
    """For each search: the problem, the search, its budget, its identity, its file's name, and the file after one
    removal."""
    import hydrasurgeon as hs
    from hydrasurgeon.criteria.circuits import criterion, state

    source = bases.path("scored")
    kept: dict[str, Any] = {}
    for search in SEARCHES:
        contents: list[bytes] = []
        write, extract = state.SearchState.write, criterion.extract

        def recorded(self: Any, position: Any, contents: list[bytes] = contents, write: Any = write) -> None:
            write(self, position)
            contents.append(self.path.read_bytes())

        def seen(
            problem: Any,
            make: Any,
            *,
            budget: int,
            state: Any = None,
            recorded: Any = None,
            progress: Any = None,
            extract: Any = extract,
            search: str = search,
        ) -> Any:
            kept[search] = (problem, make, budget, state)
            return extract(problem, make, budget=budget, state=state, recorded=recorded, progress=progress)

        with _replaced((state.SearchState, "write", recorded), (criterion, "extract", seen)):
            hs.score(
                source, out=bases.folder / f"state-{search}-{id(contents)}.safetensors", **_score_options(bases, search)
            )
        problem, make_search, budget, made = kept[search]
        kept[search] = (problem, make_search, budget, made.identity, made.path.name, contents[0])
    return kept


@contextmanager
def _replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in places]
    for holder, name, other in places:
        setattr(holder, name, other)
    try:
        yield
    finally:
        for holder, name, old in before:
            setattr(holder, name, old)


def _search(random: Random, bases: Bases) -> Attempt:
    search = random.choice(SEARCHES)
    problem, make_search, budget, identity, _, content = _searches(bases)[search]
    texts = json.loads(content)
    position = json.loads(texts["position"])
    changed = (
        _aimed(position, random)
        if random.random() < 0.5
        else mutated({k: v for k, v in position.items() if random.random() < 0.98}, random)
    )
    texts["position"] = to_json(changed)
    if random.random() < 0.1:
        texts["identity"] = to_json(mutated(json.loads(texts["identity"]), random))
    said = to_json(_outer(_hashed(texts, ""), random)).encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        said = damaged(said, random)
    name = "s.circuit-avg.search.json"

    def call(folder: Path, out: Path) -> object:
        from hydrasurgeon.criteria.circuits.greedy import extract
        from hydrasurgeon.criteria.circuits.state import SearchState

        (out / name).write_bytes(said)
        return extract(problem, make_search, budget=budget, state=SearchState(out / name, identity))

    # The command has another state at hand than the one that its own data and weights would leave; that is refused too.
    options = _score_options(bases, search)
    command = (
        "score",
        str(bases.path("scored")),
        "--method",
        "circuit",
        "--objective",
        "avg",
        "--data",
        options["data"],
        "--ood",
        options["ood"][0],
        "--search",
        search,
        "--remove",
        "2",
        "--layers",
        "1-2",
        "--device",
        "cpu",
        "--quiet",
        "-o",
        "{}/s.safetensors",
    )
    return Attempt({name: said}, call, command, writes=True)


def _hashed(texts: dict[str, str], weights: str) -> dict[str, str]:
    """With the hash that its writer would have given it: what is behind the hash is to be tried."""
    from hydrasurgeon.files.resumable import content_hash

    plain = {name: text for name, text in texts.items() if name != "sha256"}
    return {**plain, "sha256": content_hash(plain, weights)}


def _outer(texts: dict[str, str], random: Random) -> Any:
    return mutated(texts, random) if random.random() < 0.1 else texts


def _aimed(document: dict[str, Any], random: Random) -> Any:
    """The identity right, the position wrong."""
    what = random.choice(("order", "trace", "start", "memory", "packed", "counts"))
    memory = document.get("memory", {})
    if what == "order":
        head = random.choice(
            (
                ["vision", 9, 0],
                ["vision", 0, 0],
                ["vision", 1, 99],
                ["text", 1, 0],
                ["vision", -1, 0],
                ["vision", True, 0],
                ["vision", 1.0, 0],
                [text(random), 1, 1],
                ["vision", 1],
                "abc",
                None,
                [["vision"], 1, 1],
                ["vision", 1, 2**70],
            )
        )
        document["order"] = random.choice(
            ([head], [*document["order"], head], document["order"] * 2, document["order"] * 50, [], head)
        )
    elif what == "trace":
        document["trace"] = random.choice(
            ([], [scalar(random)], document["trace"] * 3, [float("nan")], "x", [[0.5]], None)
        )
    elif what == "start":
        document["start"] = scalar(random)
    elif what == "counts" and "counts" in memory:
        memory["counts"][random.choice(list(memory["counts"]))] = scalar(random)
    else:
        holders = [memory] + [part for part in memory.values() if isinstance(part, dict)]
        holder = random.choice([h for h in holders if h] or [document])
        key = random.choice(list(holder))
        content = holder[key]
        if isinstance(content, str) and content:
            raw = base64.b64decode(content)
            holder[key] = random.choice(
                (
                    base64.b64encode(raw[:-3]).decode(),
                    base64.b64encode(raw * 2).decode(),
                    "",
                    "!!",
                    content[:-1],
                    content + "=",
                    base64.b64encode(raw[: len(raw) // 2 // 8 * 8]).decode(),
                    base64.b64encode(b"\xff" * len(raw)).decode(),
                    base64.b64encode(bytes(len(raw))).decode(),
                    "é",
                    3,
                    None,
                )
            )
        else:
            holder[key] = random.choice((value(random), [["vision", 9, 9]], [["vision", 1]], []))
    return document


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


def _training(random: Random, bases: Bases) -> Attempt:
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
        from hydrasurgeon.tuning.loop import _Standing
        from hydrasurgeon.tuning.state import TrainingState

        position = TrainingState(folder / name, identity).read(*_module())
        return position if position is None else _Standing(**position.model_dump())

    data, _ = _arrays(bases.folder)
    command = (
        "finetune",
        str(bases.path("scored")),
        "--data",
        data,
        "--recipe",
        "scratch",
        "--set",
        "steps=1",
        "--device",
        "cpu",
        "--quiet",
        "--resume",
        "-o",
        "{}/t.safetensors",
    )
    return Attempt({name: said}, call, command, writes=True)
