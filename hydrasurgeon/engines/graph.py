"""The engines `onnx` and `int8`: onnxruntime runs a model's graph, on the processor.

The graph is captured from a checkpoint once and kept in a cache, or read from a file that `export`
wrote, which says what it is as a checkpoint does.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from hydrasurgeon.anatomy.words import WORDS, mean_of_words, of_words
from hydrasurgeon.checkpoints.folder import companions_inside
from hydrasurgeon.checkpoints.reading import Checkpoint, undecided
from hydrasurgeon.data.readers import with_reader
from hydrasurgeon.decision.cascaded import Said
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.crafted import check_plain
from hydrasurgeon.engines.int8 import engine_in, inputs_of, to_int8
from hydrasurgeon.engines.onnx import (
    session_of,
    to_onnx,
    wanted,
)
from hydrasurgeon.engines.program import DECIDED, METADATA, Exported, Run
from hydrasurgeon.engines.sealed import Told, is_sound, sealed
from hydrasurgeon.errors import CheckpointError, Disagreement, HydraError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.foreign import open_regular, visible
from hydrasurgeon.files.history import installed
from hydrasurgeon.files.manifest import Input, Model, first_mistake, parse_manifest
from hydrasurgeon.files.tensors import Tensors
from hydrasurgeon.options.engines import ENDING
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.runtime.classifier import Classifier, as_classifier, state_in
from hydrasurgeon.statistics.scores.fitted import Given

UNSEEN = {"history", "record_sha256", "weights_sha256", "scores"}
"""What a manifest says that no graph depends on."""
HINT = "Export the checkpoint again; answers of other models go to --predictions-in of eval."
"""What to do about a graph that does not say what it is."""


@dataclass(frozen=True)
class Graph(Checkpoint):
    """An exported graph, opened as a checkpoint: it runs as it is."""

    run: Run | None = None
    outputs: tuple[str, ...] = ()
    told: Told | None = None
    engine: str = "onnx"
    """`onnx`, or `int8`: which the file was exported for."""

    def digests(self) -> dict[str, str]:
        """There are no tensors to hash: the file was, when it was opened."""
        return {}

    def record(self, digests: Mapping[str, str]) -> Input:
        return Input(name=self.name, sha256=self.manifest.weights_sha256)


def open_graph(path: Path) -> Graph:
    """A graph that `export` wrote; another is refused."""
    with open_regular(path) as file:
        content = file.read()
    check_plain(content, str(path))
    with running(f"{path}: onnxruntime cannot read it"):
        session = session_of(content)
        said = session.get_modelmeta().custom_metadata_map
        outputs = tuple(output.name for output in session.get_outputs())
    if f"{METADATA}told" not in said or "logits" not in outputs:
        raise CheckpointError(f"{path}: is no graph that `export` wrote", hint=HINT)
    if not is_sound(content):
        raise Disagreement(f"{path}: is another graph than `export` wrote", hint=HINT)
    try:
        told = Told.model_validate_json(said[f"{METADATA}told"])
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_mistake(error)}") from error
    manifest = parse_manifest(said[f"{METADATA}manifest"], f"{path} (manifest)")
    if manifest.decision is not None:  # a graph answers whole
        plain = manifest.decision.model_copy(update={"cascade": None})
        manifest = manifest.model_copy(update={"decision": plain})
    family, where = family_of(manifest.model), f"{path} (files)"
    files = companions_inside(said.get(f"{METADATA}files", "{}"), family=family, where=where)
    family.check(manifest.model, manifest.towers, str(path))
    family.check_files(manifest.model, files, str(path))
    return Graph(
        path,
        family,
        Tensors([]),
        manifest,
        recorded=True,
        files=files,
        run=_ended_by_signals(session, outputs),
        outputs=outputs,
        told=told,
        engine=engine_in(content),
    )


def _ended_by_signals(session: Any, outputs: Sequence[str]) -> Run:
    """What runs a graph of others, which may take long; Python hears of signals when a call returns,
    so that the main thread waits for another one.
    """
    from onnxruntime import RunOptions

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        if threading.current_thread() is not threading.main_thread():
            return wanted(session, outputs)(inputs)
        options = RunOptions()
        with ThreadPoolExecutor(1) as pool:
            made = pool.submit(wanted(session, outputs, options), inputs)
            try:
                return made.result()
            except BaseException:
                options.terminate = True
                raise

    return run


@contextmanager
def running(what: str) -> Iterator[None]:
    """Whatever onnxruntime raises, which has a kind of its own for every failure, as one message."""
    try:
        yield
    except HydraError:
        raise
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(f"{what} ({visible(why)})", hint=HINT) from error


class InOnnxruntime(nn.Module, Engine):
    """A graph as an engine."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        run: Run,
        outputs: Sequence[str],
        *,
        state: State | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.name, self.manifest, self.state = checkpoint.name, checkpoint.manifest, state
        model = checkpoint.manifest.model
        transform = checkpoint.family.transform(model, files=checkpoint.files)
        self.transform = with_reader(transform, None if state is None else state.words)
        self._checkpoint, self._run, self._outputs, self._notes = checkpoint, run, outputs, notes

    @cached_property
    def live(self) -> Classifier:
        """The model that the graph was captured from, to count in."""
        return as_classifier(self._checkpoint, device="cpu", lean=True)

    @property
    def told(self) -> Told | None:
        """What the graph's file says of its cost."""
        return getattr(self._checkpoint, "told", None)

    @property
    def notes(self) -> tuple[str, ...]:
        if self.first is not None or self.state is None or self.state.record.cascade is None:
            return self._notes
        return (*self._notes, f"{self.name}: its graph answers whole; its cascade runs in torch")

    @property
    def facts(self) -> Model:
        return self.manifest.model

    @property
    def members(self) -> int:
        return len(self.manifest.members) if self.manifest.kind == "hydra" else 1

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        fed = {name: value for name, value in _named(inputs).items() if name != WORDS}
        with running(f"{self.name}: onnxruntime cannot run its graph"):
            made = dict(zip(self._outputs, self._run(fed), strict=True))
        self._check_shapes(made, len(next(iter(fed.values()))))
        return made

    def _check_shapes(self, made: Mapping[str, Tensor], rows: int) -> None:
        """Refuse outputs that are not what the manifest says there are."""
        model = self.facts
        logits, score = made["logits"], made.get("ood_score")
        expected = (rows, self.members, model.num_classes)
        found = (*logits.shape[:2], *logits.shape[-1:])
        dimensions = 4 if model.problem == "tokens" else 3
        if logits.dim() != dimensions or found != expected:
            what = f"logits {[*logits.shape]}, expected {[*expected]}"
        elif score is not None and score.shape != (rows,):
            what = f"ood_score {[*score.shape]}, expected {[rows]}"
        else:
            return
        raise CheckpointError(f"{self.name}: its graph gives {what}", hint=HINT)

    def compute(self, inputs: Any, *, features: bool) -> Said:
        answers = self(inputs)
        logits, read = answers["logits"], answers.get("features")
        if "ood_score" in answers:  # of a file that decides; it has no features
            read = answers["ood_score"][:, None, None]
        elif not features:
            read = None
        places = _named(inputs).get(WORDS)
        if places is not None:
            logits = of_words(logits, places)
            read = None if read is None else mean_of_words(of_words(read, places))
        return Said(torch.arange(len(logits)), logits, read)


def _named(inputs: Any) -> Mapping[str, Tensor]:
    """A graph's inputs by name."""
    return inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}


Captured = tuple[Exported, Mapping[str, Tensor]]
"""A graph in float32, and inputs to balance it on."""


def captured(checkpoint: Checkpoint) -> Captured:
    """The graph of a checkpoint."""
    model = as_classifier(checkpoint, device="cpu", lean=True)
    return to_onnx(model, plain=True), inputs_of(model)


def in_onnxruntime(
    checkpoint: Checkpoint,
    engine: str,
    *,
    keep: bool,
    capture: Callable[[Checkpoint], Captured] = captured,
) -> InOnnxruntime:
    """A graph that runs: the file's own, or one that is captured from the checkpoint."""
    if isinstance(checkpoint, Graph):
        assert checkpoint.run is not None
        if engine not in ("torch", checkpoint.engine):  # torch: none was asked for
            raise UsageError(
                f"--engine {engine} conflicts with {checkpoint.path}, a graph for {checkpoint.engine}",
                hint="Leave it out, or give the checkpoint that the graph was exported from.",
            )
        state = _state_of(checkpoint)
        return InOnnxruntime(checkpoint, checkpoint.run, checkpoint.outputs, state=state).eval()

    def make() -> bytes:
        made, inputs = capture(checkpoint)
        if engine == "int8":
            made = to_int8(made, inputs)
        return made.content

    session, notes = _session(_place(undecided(checkpoint), engine), make, keep)
    outputs = [output.name for output in session.get_outputs()]
    run, state = wanted(session, outputs), state_in(checkpoint)
    return InOnnxruntime(checkpoint, run, outputs, state=state, notes=notes).eval()


def _place(checkpoint: Checkpoint, engine: str) -> Path:
    """Where its graph is kept: the name, which stands inside too, says of which weights it is, and
    which versions made it.
    """
    digests, _ = checkpoint.hashes()
    facts = [
        engine,
        checkpoint.record(digests).sha256,
        checkpoint.manifest.model_dump(mode="json", exclude=UNSEEN),
        [installed(package) for package in ("hydrasurgeon", "torch", "onnxscript")],
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    root = os.environ.get("HYDRASURGEON_CACHE", Path.home() / ".cache" / "hydrasurgeon")
    return Path(root, "graphs", f"{digest[:32]}.whole{ENDING}")


def _session(place: Path, make: Callable[[], bytes], keep: bool) -> tuple[Any, tuple[str, ...]]:
    """A graph from the cache, or made now and kept there; and what to say of that."""
    if place.is_file() and is_sound(stored := place.read_bytes(), of=place.stem):
        return session_of(stored), ()
    content = make()
    session = session_of(content)
    if not keep:
        return session, ()
    folder = place.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(place, sealed(content, of=place.stem))
    except (OSError, HydraError):
        return session, (f"the graph is made in each run, for {folder} cannot be written",)
    return session, (f"the graph was made, and is kept in {folder} (HYDRASURGEON_CACHE)",)


def _state_of(graph: Graph) -> State | None:
    """The decision state of a graph that decides."""
    record = graph.manifest.decision
    if record is None or not {*DECIDED} <= {*graph.outputs}:
        return None
    kind = record.ood.score
    return State(record, Given(kind, (), ()) if kind in FITTED else None)
