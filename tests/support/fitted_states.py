"""Decision states that nothing fitted, for what is measured by them."""

import math
from typing import Any

from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import DecisionRecord, Ood
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Task


def fitted(task: Task = SINGLE, **constants: Any) -> State:
    """Return a state that calibrates by these constants, and flags nothing by msp."""
    ood = Ood.model_construct(score="msp", threshold=math.inf)
    fields = {"temperature": 1.0, "conformal": None, "ood": ood, **constants}
    return State(DecisionRecord.model_construct(**fields), None, task)
