"""History entries: what they record of the options, and the command line they give back."""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.files.history import command_line, step
from hydrasurgeon.files.manifest import Input

VIT = Input(name="vit.safetensors", sha256="0" * 64)


def test_every_kind_of_option_is_printed_as_it_is_typed() -> None:
    entry = step(
        "score",
        args={
            "method": "circuit-avg",
            "data": Path("/elsewhere/val.npz"),
            "ood": ["a.npz", "/elsewhere/b.npz"],
            "limit": 9,
            "skip_bad": True,
            "arch": None,
            "set": {"lr": "1e-3", "steps": "2"},
        },
        inputs=[VIT],
        seed=3,
    )
    assert command_line(entry) == [
        "score",
        "vit.safetensors",
        "--method",
        "circuit-avg",
        "--data",
        "val.npz",
        "--ood",
        "a.npz",
        "--ood",
        "b.npz",
        "--limit",
        "9",
        "--skip-bad",
        "--set",
        "lr=1e-3",
        "--set",
        "steps=2",
        "--seed",
        "3",
    ]


def test_no_absolute_path_is_recorded() -> None:
    args = {"data": "/there/images", "classes": Path("/here/names.txt")}
    entry = step("prune", args=args, inputs=[VIT])
    assert entry.args == {"data": "images", "classes": "names.txt"}
