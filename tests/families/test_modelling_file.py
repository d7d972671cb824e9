"""modeling_hydrasurgeon.py runs in other people's processes: what config.json tells it is checked there, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES, HEADS, LAYERS

import hydrasurgeon as hs
from hydrasurgeon.families.hf_encoder import modeling_hydrasurgeon as modelling

RAGGED = [[0, 2], [], [1, 2, 3]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pruned BERT and a hydra, as directories."""
    home = tmp_path_factory.mktemp("made")
    FAMILIES["BERT"].write(home / "stock")
    parts = []
    for number, rows in enumerate((RAGGED, [[0, 2], [1], [3]])):
        mask = home / f"{number}.json"
        mask.write_text(json.dumps({"text": rows}))
        parts.append(hs.prune(home / "stock", mask=mask, out=f"{home}/m{number}/").path)
    return {"pruned": home / "m0", "hydra": hs.fuse(parts, out=f"{home}/h/").path}


def loaded(folder: Path) -> torch.nn.Module:
    config = modelling.Config.from_pretrained(folder)
    kind = modelling.HydraModel if "members" in config.hydrasurgeon else modelling.PrunedModel
    return kind.from_pretrained(folder, config=config)


ROWS: list[tuple[str, Any]] = [
    ("a head too many", [[0, HEADS], [], []]),
    ("a head twice", [[1, 1], [], []]),
    ("unsorted", [[2, 1], [], []]),
    ("a text", [["0"], [], []]),
    ("a layer too few", [[0]] * (LAYERS - 1)),
    ("no rows", None),
]


@pytest.mark.parametrize(("what", "rows"), ROWS, ids=[what for what, _ in ROWS])
@pytest.mark.parametrize("kind", ["pruned", "hydra"])
def test_lists_of_heads_that_the_model_does_not_have(
    made: dict[str, Path], tmp_path: Path, kind: str, what: str, rows: Any
) -> None:
    def change(told: dict[str, Any]) -> None:
        if kind == "pruned":
            told["kept"] = rows
        else:
            told["members"][1] = rows

    with pytest.raises(ValueError, match=r"config\.json: hydrasurgeon: "):
        loaded(retold(made[kind], tmp_path / "x", change))


def retold(folder: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    change(config["hydrasurgeon"])
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_weights_that_do_not_hold_the_heads_listed(made: dict[str, Path], tmp_path: Path) -> None:
    """A list that is right in form, and wrong for these weights."""
    with pytest.raises(ValueError, match=r"has shape \(32, 8\), not 3 heads of 8"):
        loaded(
            retold(
                made["hydra"],
                tmp_path / "x",
                lambda told: told["members"][0].__setitem__(1, [0, 2]),
            )
        )


def test_a_hydra_with_a_tensor_missing_is_not_filled_up(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """transformers draws what is missing at random, and only warns."""
    shutil.copytree(made["hydra"], tmp_path / "x")
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, tmp_path / "x" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"member 0 lacks classifier\.weight"):
        loaded(tmp_path / "x")
