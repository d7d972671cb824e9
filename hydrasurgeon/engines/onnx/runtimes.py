"""Sessions of onnxruntime, which run a graph on the processor with numpy's arrays."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hydrasurgeon.engines.onnx.onnx_header import without_weights
from hydrasurgeon.errors import CheckpointError, HydraError
from hydrasurgeon.files.untrusted import open_regular, visible
from hydrasurgeon.runtime.threads import threads

SILENCE = "ORT_DISABLE_TELEMETRY"
"""Since 1.29 onnxruntime's Linux builds report sessions, with names and hashes of the models, to
their maker unless this is set when it is first imported.
"""
FOLDER = "session.model_external_initializers_file_folder_path"
"""onnxruntime's name for where tensors lie that are not in the graph."""
MAPS = [1, 21]
"""The version since which it knows that."""
HINT = "Export the checkpoint again; answers of other models go to --predictions-in of eval."
"""Hint for a graph that `export` did not write."""

POLL = 100
"""Milliseconds after which Python looks whether a signal came."""

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Sequence[NDArray[Any]]]
"""Runs a graph: inputs by name → its outputs in order."""


def quiet() -> None:
    """Turn telemetry off before anything imports onnxruntime, unless the user's environment sets
    it.
    """
    os.environ.setdefault(SILENCE, "1")


def session_of(graph: bytes | Path) -> Any:
    """Return the session of a graph, or of a plain file of one, whose weights are mapped from
    there.
    """
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


def runner_of(session: Any, outputs: Sequence[str], options: Any = None) -> Run:
    """Return a function that runs a session for these outputs; `options` are onnxruntime's."""

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        outputs_of_run: Sequence[NDArray[Any]] = session.run(list(outputs), dict(inputs), options)
        return outputs_of_run

    return run


def ended_by_signals(session: Any, outputs: Sequence[str]) -> Run:
    """Return a function that runs a graph of others, which may take long, and ends on a signal.
    Python hears of signals when a call returns, so the main thread waits for another one.
    """
    from onnxruntime import RunOptions

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        if threading.current_thread() is not threading.main_thread():
            return runner_of(session, outputs)(inputs)
        options = RunOptions()
        with ThreadPoolExecutor(1) as pool:
            try:
                future = pool.submit(runner_of(session, outputs, options), inputs)
                while not wait([future], POLL / 1000).done:
                    pass  # a signal that came just before the waiting wakes nobody
                return future.result()
            except BaseException:
                options.terminate = True
                raise

    return run


def mapped(path: Path) -> mmap.mmap:
    """Map the content of a file, of which nothing is in memory that is not read."""
    with open_regular(path) as file:
        if not file.read(1):
            raise CheckpointError(f"{path}: is empty", hint=HINT)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def running(failure: str) -> Iterator[None]:
    """Turn any error of a runtime, which has a kind of its own for every failure, into one message."""
    try:
        yield
    except HydraError:
        raise
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{failure} ({visible(why)})", hint=HINT) from error
