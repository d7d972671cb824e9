"""Tasks: one file per kind, which implements `base.Task`."""

from __future__ import annotations

from hydrasurgeon.files.manifest import TASK_PLACES, Model, task_class
from hydrasurgeon.tasks.base import Task


class _Kinds(dict[str, Task]):
    """Tasks by name; those of other packages are loaded on first use."""

    def __missing__(self, name: str) -> Task:
        self[name] = task_class(name)()
        return self[name]


TASKS = _Kinds({name: task_class(name)() for name in TASK_PLACES})
"""Every task, by its name in manifests."""
SINGLE = TASKS["single_label"]
"""Most common kind: one of several classes."""


def task_of(model: Model) -> Task:
    """Return the task that a model solves."""
    return TASKS[model.task]
