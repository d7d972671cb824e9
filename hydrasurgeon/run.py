"""How a stage goes over its samples: one record of what most commands share, and what torchrun says of several
processes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TypedDict, TypeVar

Progress = Callable[[str, int, int], None]
"""What is being done, steps done, steps in all."""
Stage = TypeVar("Stage", bound=Callable[..., object])


class RunKeywords(TypedDict, total=False):
    """The keywords of a `Run`."""

    limit: int | None
    seed: int
    device: str
    dtype: str
    batch_size: int | None
    skip_bad: bool
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a model runs over samples."""

    limit: int | None = None
    """Use a random so many of the samples; None: all of them."""
    seed: int = 0
    """Every random choice follows from it."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    batch_size: int | None = None
    """Samples in one pass; None: as many as suit the device."""
    skip_bad: bool = False
    """Leave out images that cannot be read."""
    progress: Progress | None = None

    def tick(self, what: str, done: int, total: int) -> None:
        """Say how far the work is, to whoever wants to know."""
        if self.progress is not None:
            self.progress(what, done, total)


def takes(arguments: type) -> Callable[[Stage], Stage]:
    """Give a stage that takes keywords the signature of their record, defaults and all, for `help` and editors."""

    def decorated(stage: Stage) -> Stage:
        positional = [
            parameter
            for parameter in inspect.signature(stage).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        stage.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*positional, *_parameters(arguments)], return_annotation=inspect.signature(stage).return_annotation
        )
        return stage

    return decorated


def _parameters(arguments: type) -> list[inspect.Parameter]:
    """A record's fields as keywords: those without a default first, then its own before what it shares."""
    homes = {
        name: at for at, base in enumerate(arguments.__mro__) for name in reversed(getattr(base, "__annotations__", {}))
    }
    ordered = sorted(fields(arguments), key=lambda f: (f.default is not MISSING, homes[f.name]))
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=f.type,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
        )
        for f in ordered
    ]


def is_main_process() -> bool:
    """Whether this process writes: the first of those that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def is_launched() -> bool:
    """Whether torchrun started this process, and perhaps others beside it."""
    return "WORLD_SIZE" in os.environ


def process_count() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Which of this machine's processes this one is."""
    return int(os.environ.get("LOCAL_RANK", "0"))
