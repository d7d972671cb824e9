"""Tensors of a predictions file that nothing reads: most are names misspelt."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hydrasurgeon.lookup import did_you_mean, nearest
from hydrasurgeon.visible import visible

OOD = re.compile(r"ood\.(.+)\.logits", re.DOTALL)
"""The name of the tensor with the logits on an OOD set."""
SCORED = re.compile(r"ood\.(.+?)\.scores\.(.+)", re.DOTALL)
"""That of the tensor with a score there."""
SCORES = "scores."
"""How the names of scores on the data itself begin."""
MOST_SHOWN = 4
"""Names that a note lists."""
LONGEST = 80
"""Characters that are shown of a name."""


def stray(names: Iterable[str], shifts: Iterable[str]) -> tuple[str, ...]:
    """The names that no tensor has which is read; `shifts`: how those of shifted sets begin."""
    here = {"logits", "labels"} | {f"{key}.{part}" for key in shifts for part in ("logits", "labels")}
    return tuple(name for name in sorted(names) if name not in here and not _is_set(name))


def _is_set(name: str) -> bool:
    return name.startswith(SCORES) or bool(SCORED.fullmatch(name) or OOD.fullmatch(name))


def stray_note(file: str, names: Sequence[str], here: Collection[str]) -> list[str]:
    """What is not read, for the user to see, and what it may have been meant for; `here`: all names of the file."""
    if not names:
        return []
    shown = [f"{_short(name)}{did_you_mean(name, _meant(name, here), _short)}" for name in names[:MOST_SHOWN]]
    more = [f"{len(names) - MOST_SHOWN:,} more"] if len(names) > MOST_SHOWN else []
    shifted = ""
    if any(name.startswith("shift.") for name in names):
        shifted = "; shifted sets are those that its description lists, which eval --predictions writes"
    return [
        f"{file}: holds tensors that are not read: {', '.join([*shown, *more])}; those that are read are called logits,"
        f" labels, scores.NAME, ood.SET.logits and ood.SET.scores.NAME{shifted}"
    ]


def instead(missing: str, names: Iterable[str]) -> str:
    """` (it holds X, which is not read)`, where one of `names` is near to what is missing."""
    return "".join(f" (it holds {_short(near)}, which is not read)" for near in nearest(missing, names))


def _meant(name: str, here: Collection[str]) -> list[str]:
    """The names of its kind that a file may have and this one has not."""
    head, _, last = name.rpartition(".")
    above = head.rpartition(".")[0]
    forms = ("logits", "labels", f"{SCORES}{last}", f"{head}.logits", f"{above}.scores.{last}", f"{head}.scores.{last}")
    return [form for form in forms if form not in here and (form in ("logits", "labels") or (last and _is_set(form)))]


def _short(name: object) -> str:
    return visible(str(name)[:LONGEST])
