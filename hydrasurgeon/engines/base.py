"""Interface of engines: what one is called, what it needs, which files it opens, how it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.runtime.answering import Engine

Parts = dict[str, Any]
"""Values that engines of one checkpoint share while they are made."""


class EngineKind(ABC):
    """An engine, before it has a model. Heavy imports wait inside the methods."""

    name: ClassVar[str]
    help: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Packages that answer."""
    makers: ClassVar[tuple[str, ...]] = ()
    """Packages that it needs besides them to take a checkpoint's weights."""
    exact: ClassVar[bool] = True
    """True if its answers are float32's: a decision state holds in all such engines."""
    graph: ClassVar[bool] = False
    """True if it runs a graph, in float32 and on the processor."""

    @property
    def installed(self) -> bool:
        """True if its packages for answering are there."""
        return all(map(find_spec, self.packages))

    @property
    def takes_weights(self) -> bool:
        """True if this machine can run checkpoints in it."""
        return self.installed and all(map(find_spec, self.makers))

    def reads(self, spec: str) -> bool:
        """Return True for a file or folder that `export` wrote and that this engine opens."""
        return False

    def holds(self, spec: str) -> bool:
        """Return True for a folder with several engines' files, one of them this engine's."""
        return False

    def open(self, spec: str, engine: str) -> Checkpoint:
        """Open such a file or folder for the engine of this name, or for `auto`."""
        raise NotImplementedError

    def pays(self, checkpoint: Checkpoint, rows: int) -> bool:
        """Return True if `auto` takes it, in place of torch, to answer so many rows."""
        return False

    @abstractmethod
    def load(
        self, checkpoint: Checkpoint, *, device: str, dtype: str, keep: bool, parts: Parts | None
    ) -> Engine:
        """Return the engine of a checkpoint. `keep` leaves what is made in the cache; `parts` holds
        what other engines of this checkpoint need too.
        """
