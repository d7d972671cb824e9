"""What runs a graph on the processor, numpy's arrays in and out: onnxruntime."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hydrasurgeon.engines.file import without_weights
from hydrasurgeon.errors import CheckpointError, HydraError
from hydrasurgeon.files.foreign import open_regular, visible

SILENCE = "ORT_DISABLE_TELEMETRY"
"""Since 1.29 onnxruntime's Linux builds report sessions, with names and hashes of the models, to
their maker unless this is set when it is first imported.
"""
THREADS = "OMP_NUM_THREADS"
"""How many threads a product may use; PyTorch obeys it too."""
FOLDER = "session.model_external_initializers_file_folder_path"
"""onnxruntime's name for where tensors lie that are not in the graph."""
MAPS = [1, 21]
"""The version since which it knows that."""
HINT = "Export the checkpoint again; answers of other models go to --predictions-in of eval."
"""What to do about a graph that does not say what it is."""

POLL = 100
"""Milliseconds after which Python looks whether a signal came."""

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Sequence[NDArray[Any]]]
"""Runs a graph: inputs by name → its outputs in order."""


def quiet() -> None:
    """Before anything imports onnxruntime; what the user's environment says stays."""
    os.environ.setdefault(SILENCE, "1")


def session_of(graph: bytes | Path) -> Any:
    """The session of a graph, or of a plain file of one, whose weights are mapped from there."""
    quiet()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    source: Any = graph if isinstance(graph, bytes) else str(graph)
    version = [int(part) for part in onnxruntime.__version__.split(".")[:2]]
    if isinstance(graph, Path) and version >= MAPS:
        place = Path(os.path.realpath(graph))  # onnxruntime follows no link out of a folder
        options.add_session_config_entry(FOLDER, str(place.parent))
        source = without_weights(mapped(place), place.name)
    return onnxruntime.InferenceSession(
        source,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # a norm alone is faster
    )


def threads() -> int:
    """As many as PyTorch has, where it is in use; 0 lets the runtime choose."""
    torch = sys.modules.get("torch")
    if torch is not None:
        count: int = torch.get_num_threads()
        return count
    said = os.environ.get(THREADS, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 5 else 0


def share_threads(processes: int) -> None:
    """Leave each of so many processes its part of the processor."""
    count = max(1, (threads() or os.cpu_count() or 1) // processes)
    os.environ[THREADS] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def wanted(session: Any, outputs: Sequence[str], options: Any = None) -> Run:
    """What runs a session for these outputs; `options` are onnxruntime's."""

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        made: Sequence[NDArray[Any]] = session.run(list(outputs), dict(inputs), options)
        return made

    return run


def ended_by_signals(session: Any, outputs: Sequence[str]) -> Run:
    """What runs a graph of others, which may take long; Python hears of signals when a call returns,
    so that the main thread waits for another one.
    """
    from onnxruntime import RunOptions

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        if threading.current_thread() is not threading.main_thread():
            return wanted(session, outputs)(inputs)
        options = RunOptions()
        with ThreadPoolExecutor(1) as pool:
            try:
                made = pool.submit(wanted(session, outputs, options), inputs)
                while not wait([made], POLL / 1000).done:
                    pass  # a signal that came just before the waiting wakes nobody
                return made.result()
            except BaseException:
                options.terminate = True
                raise

    return run


def mapped(path: Path) -> mmap.mmap:
    """The content of a file, of which nothing is in memory that is not read."""
    with open_regular(path) as file:
        if not file.read(1):
            raise CheckpointError(f"{path}: is empty", hint=HINT)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def running(what: str) -> Iterator[None]:
    """Whatever a runtime raises, which has a kind of its own for every failure, as one message."""
    try:
        yield
    except HydraError:
        raise
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{what} ({visible(why)})", hint=HINT) from error
