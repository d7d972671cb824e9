"""What eval was given and does not use, said in notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import EvaluateOptions


def unused(opened: Sequence[Checkpoint], arguments: EvaluateOptions, *, val_is_read: bool = False) -> Iterator[str]:
    """Options that change nothing beside the others, and decision states that are left alone unasked."""
    if not opened:
        yield from _unread(arguments)
        return
    if arguments.val is not None and arguments.temperature != "fit" and not val_is_read:
        yield "--val: not read, for nothing is fitted to it; --temperature fit would be"
    decided = [visible(each.name) for each in opened if each.manifest.decision is not None]
    if not decided or arguments.no_decision:
        return
    if arguments.mc_dropout is not None:
        yield f"{', '.join(decided)}: the decision state is left alone: it was fitted to answers without dropout"
    elif arguments.ensemble:
        yield (
            f"{', '.join(decided)}: the decision state is left alone: it was fitted to this model's answers, not the"
            " ensemble's"
        )


def _unread(arguments: EvaluateOptions) -> Iterator[str]:
    """Data sets that were named, where no model is there to read them."""
    named = {
        "--data": arguments.data,
        "--ood": arguments.ood,
        "--shift": arguments.shift,
        "--val": arguments.val,
        "--limit": arguments.limit,
        "--classes": arguments.classes,
        "--template": arguments.template,
    }
    options = [option for option, value in named.items() if value or value == 0]
    if options:
        yield f"{', '.join(options)}: not read, for no checkpoint was given; predictions files hold their own sets"
