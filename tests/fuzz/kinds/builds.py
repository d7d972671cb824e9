"""Work folders of `build`: its state, and the answers that candidates gave; what a repeated build would choose by."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Attempt
from fuzz.hostile import damaged, mutated, scalar, to_json, value
from fuzz.kinds.predictions import CHANGES, _file
from fuzz.kinds.states import _arrays, _hashed

# A folder of other work is a wrong command; one that somebody changed cannot be read.
EXITS = {0, 2, 3, 5}
IDENTITY = {"weights": "0" * 64, "val": ["8 rows 0a1b2c3d4e5f"], "criteria": ["taylor"], "seed": 0}
TIME = {"start": 0.1, "layer": 0.2, "mac": 1e-9, "error": 0.05}


def make(random: Random, bases: Bases) -> Attempt:
    return (_state if random.random() < 0.5 else _answers)(random, bases)


def _state(random: Random, bases: Bases) -> Attempt:
    position: Any = {"time": random.choice((None, TIME)), "notes": {"m.safetensors": ["said"]}}
    if random.random() < 0.5:
        position = mutated(position, random)
    else:
        position = {"time": {**TIME, random.choice(list(TIME)): scalar(random)}}
    texts: Any = {
        "hydrasurgeon.state": "hydrasurgeon.build-state/2",
        "identity": to_json(mutated(IDENTITY, random) if random.random() < 0.2 else IDENTITY),
        "position": to_json(position),
    }
    texts = _hashed(texts, "") if random.random() < 0.9 else value(random)
    content = to_json(mutated(texts, random) if random.random() < 0.1 else texts)
    said = content.encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        said = damaged(said, random)

    def call(folder: Path, out: Path) -> object:
        from hydrasurgeon.measuring.planned_cost import TimeModel
        from hydrasurgeon.stages.build_search import State

        position = State(folder / "work" / "build.json", IDENTITY).read()
        time = position.time
        assert all(isinstance(note, str) for notes in position.notes.values() for note in notes)
        if time is None:
            return None
        assert isinstance(time, TimeModel)
        assert min(time.start, time.layer, time.mac, time.error) >= 0
        return State(out / "build.json", IDENTITY).write(position)

    return Attempt({"work/build.json": said}, call, _command(bases), writes=True)


def _answers(random: Random, bases: Bases) -> Attempt:
    sets: list[dict[str, Any]] = [_logits(seed) for seed in (0, 1)]
    for _ in range(random.choice((1, 1, 2))):
        random.choice(CHANGES)(random.choice(sets), random)
    about: Any = {"name": "candidate", "kind": "member", "ood": [["0", "near"]]}
    files: dict[str, Any] = {}
    for name, tensors in zip(_names(), sets, strict=True):
        changed = mutated(about, random) if random.random() < 0.2 else about
        content = _file(tensors, to_json(changed), random)
        files[f"work/answers/{name}"] = damaged(content, random) if random.random() < 0.05 else content

    def call(folder: Path, out: Path) -> object:
        from hydrasurgeon.criteria.together.choice import Pool, choose
        from hydrasurgeon.criteria.together.objective import objective_of

        cache = _cache(folder / "work")
        answers = [cache.read(candidate) for candidate in _candidates()]
        pool = Pool.gathered(objective_of("avg"), iter(answers), len(answers))
        choice = choose(pool, pools=[[0, 1]], members=None, affordable=lambda members: True)
        assert choice is not None
        return json.loads(json.dumps([*choice.members]))

    return Attempt(files, call, _command(bases), writes=True)


def _command(bases: Bases) -> tuple[str, ...]:
    """The same folder, met by a build of its own, which has other data."""
    data, ood = _arrays(bases.folder)
    return (
        "build",
        str(bases.path("scored")),
        "--data",
        data,
        "--val",
        str(_val(bases.folder)),
        "--ood",
        ood,
        "--criteria",
        "magnitude",
        "--candidates",
        "1",
        "--no-calibrate",
        "--dry-run",
        "--device",
        "cpu",
        "--quiet",
        "--cache",
        "{}/work",
        "-o",
        "{out}/b.safetensors",
    )


@cache
def _val(folder: Path) -> Path:
    """Twenty images of three classes."""
    import numpy as np

    path = folder / "val.npz"
    if not path.exists():
        pixels = np.random.default_rng(1).integers(0, 255, (20, 28, 28, 3), dtype=np.uint8)
        np.savez(path, images=pixels, labels=np.arange(20) % 3)
    return path


def _logits(seed: int) -> dict[str, Any]:
    import numpy as np

    drawn = np.random.default_rng(seed)
    return {
        "logits": drawn.normal(size=(8, 1, 3)).astype("f4"),
        "labels": np.arange(8) % 3,
        "ood.0.logits": drawn.normal(size=(6, 1, 3)).astype("f4"),
    }


def _candidates() -> tuple[Any, ...]:
    from hydrasurgeon.criteria.together.candidates import Candidate

    return (Candidate({"vision": [[0, 1]]}), Candidate({"vision": [[0]]}, "magnitude", remove=1))


def _cache(folder: Path) -> Any:
    from hydrasurgeon.criteria.together.answers import Cache

    trial: Any = SimpleNamespace()  # nothing runs
    return Cache(folder, trial, IDENTITY)


@cache
def _names() -> tuple[str, ...]:
    """What the candidates' files are called."""
    return tuple(_cache(Path("x")).place(candidate).name for candidate in _candidates())
