"""What a kind of question means: one file a kind, behind the verbs of `base.Problem`."""

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
    """Kinds of problems by name; those of other packages come in when they are asked for."""

    def __missing__(self, name: str) -> Problem:
        self[name] = plugins("problems")[name]()
        return self[name]


PROBLEMS = _Kinds(
    {each.name: each for each in (Classes(), YesNo(), ManyLabels(), Numbers(), Tokens())}
)
"""Every kind of problem, by the name that manifests have for it."""
SINGLE = PROBLEMS["single_label"]
"""The usual one."""


def problem_of(model: Model) -> Problem:
    """How a model's logits are read."""
    return PROBLEMS[model.problem]
