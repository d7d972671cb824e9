"""Kinds of problems: one file per kind, which implements `base.Problem`."""

from __future__ import annotations

from hydrasurgeon.files.manifest import Model
from hydrasurgeon.lookup import plugins
from hydrasurgeon.problems.base import Problem
from hydrasurgeon.problems.classes import Classes
from hydrasurgeon.problems.many_labels import ManyLabels
from hydrasurgeon.problems.number import Numbers
from hydrasurgeon.problems.tokens import Tokens
from hydrasurgeon.problems.yes_no import YesNo


class _Kinds(dict[str, Problem]):
    """Kinds of problems by name; those of other packages are loaded on first use."""

    def __missing__(self, name: str) -> Problem:
        self[name] = plugins("problems")[name]()
        return self[name]


PROBLEMS = _Kinds(
    {problem.name: problem for problem in (Classes(), YesNo(), ManyLabels(), Numbers(), Tokens())}
)
"""Every kind of problem, by its name in manifests."""
SINGLE = PROBLEMS["single_label"]
"""Most common kind: one of several classes."""


def problem_of(model: Model) -> Problem:
    """Return the problem that a model solves."""
    return PROBLEMS[model.problem]
