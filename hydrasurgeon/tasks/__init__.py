"""Tasks: one file per kind, which implements `base.Task`."""

from __future__ import annotations

from hydrasurgeon.files.manifest import Model
from hydrasurgeon.lookup import plugins
from hydrasurgeon.tasks.base import Task
from hydrasurgeon.tasks.binary import Binary
from hydrasurgeon.tasks.multi_label import MultiLabel
from hydrasurgeon.tasks.regression import Regression
from hydrasurgeon.tasks.single_label import SingleLabel
from hydrasurgeon.tasks.token_classification import TokenClassification


class _Kinds(dict[str, Task]):
    """Tasks by name; those of other packages are loaded on first use."""

    def __missing__(self, name: str) -> Task:
        self[name] = plugins("tasks")[name]()
        return self[name]


TASKS = _Kinds(
    {
        task.name: task
        for task in (SingleLabel(), Binary(), MultiLabel(), Regression(), TokenClassification())
    }
)
"""Every task, by its name in manifests."""
SINGLE = TASKS["single_label"]
"""Most common kind: one of several classes."""


def task_of(model: Model) -> Task:
    """Return the task that a model solves."""
    return TASKS[model.task]
