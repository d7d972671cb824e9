"""A tiny BERT that learns a task, and what is made of it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from any_labels import any_labels
from safetensors.numpy import load_file
from task_references import Reference, write_table
from tiny_families import FAMILIES
from tiny_members import members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

BERT = FAMILIES["BERT"]
CPU: dict[str, Any] = {"device": "cpu"}
SIZES = {"train": 200, "val": 300, "test": 120, "few": 60}


class Life:
    """A task's tables and checkpoints, in a folder of their own."""

    def __init__(self, task: type[Reference], home: Path) -> None:
        self.task, self.home = task, home
        self.tables = {
            name: write_table(home / f"{name}.jsonl", task, rows, seed)
            for seed, (name, rows) in enumerate(SIZES.items())
        }
        BERT.write(home / "bert")
        config = home / "bert" / "config.json"
        quiet = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
        config.write_text(json.dumps(json.loads(config.read_text()) | quiet))

    @cached_property
    def trained(self) -> Any:
        """A tuned model, as a directory."""
        settings = {"task": self.task.name, "classifier": "fresh", "batch_size": "8"}
        return hs.finetune(
            self.home / "bert",
            data=self.tables["train"],
            val=self.tables["few"],
            recipe="text",
            set={**settings, "epochs": "6", "lr": "2e-3"},
            out=f"{self.home / 'model'}/",
            **CPU,
        )

    @property
    def model(self) -> Path:
        return self.trained.path

    @cached_property
    def members(self) -> list[Path]:
        return tuned_of(members_of(self.model, BERT, self.home), self.home)

    @cached_property
    def hydra(self) -> Path:
        return hs.fuse(self.members, out=f"{self.home / 'hydra'}/", mlp="separate").path

    @cached_property
    def ready(self) -> Path:
        """The calibrated hydra."""
        out = self.home / "ready.safetensors"
        with any_labels():
            options = {**self.task.options, **CPU}
            return hs.calibrate(self.hydra, data=self.tables["val"], out=out, **options).path

    def reference(self, checkpoint: Path) -> Any:
        manifest = open_checkpoint(checkpoint).manifest
        return self.task(manifest.model.labels, manifest.decision)

    def outputs(self, checkpoint: Path, table: str) -> tuple[Any, Any]:
        """Return logits [sample, member, …] and labels."""
        place = self.home / "outputs.safetensors"
        options = {"predictions": place, "no_decision": True, "force": True, **CPU}
        hs.evaluate(checkpoint, data=self.tables[table], **options)
        stored = load_file(place)
        return stored["logits"].astype(np.float64), stored["labels"]

    def measured(self, checkpoint: Path, table: str, **options: Any) -> Any:
        done = hs.evaluate(checkpoint, data=self.tables[table], **CPU, **options)
        return done.report.results[0].id

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return [*hs.predict(self.ready, data=self.tables["test"], **CPU)]
