"""What else a part's price buys, in benchmarks/front.py: Torch-Pruning's choice of heads and neurons, and the first layers alone.

Torch-Pruning (Fang et al., 2023) removes as many heads and neurons of every layer as we do, by its group importance (magnitude, or Taylor on the same samples), and
repairs nothing. A shallow model is the first layers of a whole one, with its classifier. Both are then distilled as the part is: same teachers, data, steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from front_models import COSTS, SCORED, Place
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_single, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.families import family_of
from hydrasurgeon.families.weights import by_name
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import NEURONS
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.runtime.tensors import plan_tensors

IMPORTANCES = {"magnitude": "GroupMagnitudeImportance", "taylor": "GroupTaylorImportance"}
"""Our name of a criterion → Torch-Pruning's."""


def rivals() -> dict[str, Callable[[Place], Path]]:
    """Name → the file."""
    rows: dict[str, Callable[[Place], Path]] = {}
    for how in IMPORTANCES:
        rows[f"half, Torch-Pruning by {how}, distilled"] = lambda p, h=how: p.distilled(  # type: ignore[misc]
            torch_pruned(p, "half", h)
        )
    rows["half, first layers, distilled"] = lambda p: p.distilled(shallow(p, "half"))
    return rows


def torch_pruned(place: Place, size: str, how: str) -> Path:
    """A part whose heads and neurons Torch-Pruning chose: its choice goes through our scissors, as scores of one and nought."""
    out = place.file(f"{size} torch-pruning {how}")
    if out.exists():
        return out
    keep, neurons = place.shares(place.whole(0), COSTS[size])
    opened = open_single(place.whole(0))
    model = live_module(opened)
    blocks = opened.family.anatomy(model).blocks
    removed = _removed(place, opened, model, blocks, keep=keep, neurons=neurons, how=how)
    tower = blocks[0].attention.tower
    heads = [
        [float(h not in removed[f"{i}.heads"]) for h in b.attention.heads]
        for i, b in enumerate(blocks)
    ]
    rows = [
        [float(n not in removed[f"{i}.neurons"]) for n in range(b.out.in_features)]
        for i, b in enumerate(blocks)
    ]
    scores = {"random": Score(values={tower: heads}), "neurons-random": Score(values={tower: rows})}
    scored = place.file("torch-pruning scored")
    state = live_module(opened).state_dict()
    save(
        scored,
        plan_tensors(state),
        lambda s: rewritten(opened.manifest, scores=scores, weights_sha256=s),
        files=opened.files,
    )
    hs.prune(scored, method="random", keep=keep, neurons=neurons, out=out)
    kept = open_single(out).manifest
    assert all(
        row == tuple(h for h, one in enumerate(mine) if one)
        for row, mine in zip(kept.kept[tower], heads, strict=True)
    )
    return out


def _removed(
    place: Place,
    opened: Any,
    model: torch.nn.Module,
    blocks: Any,
    *,
    keep: int,
    neurons: float,
    how: str,
) -> dict[str, set[int]]:
    """ "LAYER.heads" and "LAYER.neurons" → what Torch-Pruning takes away."""
    import torch_pruning as tp

    manifest = opened.manifest
    inputs = family_of(manifest.model).example(
        manifest.model, 2, device=torch.device("cpu"), dtype=torch.float32
    )
    roots: dict[torch.nn.Module, str] = {}
    for i, block in enumerate(blocks):
        roots |= dict.fromkeys(block.attention.project, f"{i}.heads")
        roots[_first(block)] = f"{i}.neurons"
    attention = {
        module: len(blocks[0].attention.heads)
        for module, key in roots.items()
        if key.endswith("heads")
    }
    for parameter in model.parameters():
        parameter.requires_grad_()
    if how == "taylor":
        for batch in _scored(place, opened):
            cross_entropy(model(batch.inputs), batch.labels, reduction="sum").backward()
    pruner = tp.pruner.BasePruner(
        model,
        (inputs,),
        importance=getattr(tp.importance, IMPORTANCES[how])(),
        pruning_ratio=1 - neurons,
        head_pruning_ratio=1 - keep / len(blocks[0].attention.heads),
        ignored_layers=[m for m in model.modules() if not list(m.children()) and m not in roots],
        num_heads=attention,
        prune_num_heads=True,
        prune_head_dims=False,
    )
    removed: dict[str, set[int]] = {key: set() for key in roots.values()}
    width = blocks[0].attention.head_dim
    for group in pruner.step(interactive=True):
        for dependency, rows in group:
            key = roots.get(dependency.target.module)
            if key is None or (
                not dependency.handler.__name__.startswith("prune_out")
                and "out" not in dependency.handler.__name__
            ):
                continue
            total = dependency.target.module.weight.shape[0] // (
                3 if len(blocks[0].attention.project) == 1 else 1
            )
            removed[key] |= (
                {r % total // width for r in rows} if key.endswith("heads") else set(rows)
            )
    return removed


def _first(block: Any) -> torch.nn.Linear:
    """W_1."""
    return next(
        m for m in block.mlp.modules() if isinstance(m, torch.nn.Linear) and m is not block.out
    )


def _scored(place: Place, opened: Any) -> Iterator[Any]:
    """The samples that our own parts are scored on."""
    model = opened.manifest.model
    transform = family_of(model).transform(model, files=opened.files)
    yield from Batches(open_data(place.data("train"), limit=SCORED), transform, batch_size=64)


def shallow(place: Place, size: str) -> Path:
    """The first layers of a whole model, its norm and its classifier."""
    out = place.file(f"{size} first layers")
    if out.exists():
        return out
    opened = open_single(place.whole(0))
    family, old = opened.family, opened.manifest
    (tower,) = old.towers.values()
    layers = round(COSTS[size] * tower.layers)
    config: dict[str, Any] = dict(old.model.config)
    if "model_args" in config:
        config["model_args"] = {**config["model_args"], "depth": layers}
    else:
        config["num_hidden_layers"] = layers
    model = old.model.model_copy(update={"config": config})
    weights = by_name(family.weights(old.model))
    state = {
        n: t
        for n, t in live_module(opened).state_dict().items()
        if (weights[n].layer or 0) < layers
    }
    towers = family.towers(model)
    kept = {tower: rows[:layers] for tower, rows in old.kept.items() if not tower.endswith(NEURONS)}
    save(
        out,
        plan_tensors(state),
        lambda s: rewritten(
            old, model=model, towers=towers, kept=kept, scores={}, history=(), weights_sha256=s
        ),
        files=opened.files,
    )
    return out
