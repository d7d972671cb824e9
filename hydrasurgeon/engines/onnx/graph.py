"""Engines that run a model's graph on the processor.

The graph is captured from a checkpoint once and kept in a cache, or read from a file that `export`
wrote, which says what it is as a checkpoint does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, undecided
from hydrasurgeon.checkpoints.folder import GRAPH, GRAPHS, companions_inside
from hydrasurgeon.data.readers import with_reader
from hydrasurgeon.data.texts import Tokenize
from hydrasurgeon.data.word_tokens import WORDS, TokenizeWords
from hydrasurgeon.decision.state import Said, State, state_in
from hydrasurgeon.engines import ENGINES, engine_named
from hydrasurgeon.engines.base import Parts
from hydrasurgeon.engines.onnx import ENDING, Onnx
from hydrasurgeon.engines.onnx.onnx_header import (
    DECIDED,
    MEMBERS,
    METADATA,
    GraphContents,
    Told,
    is_sound,
    read_plain,
    sealed,
)
from hydrasurgeon.engines.onnx.runtimes import (
    HINT,
    Arrays,
    Run,
    ended_by_signals,
    mapped,
    runner_of,
    running,
    session_of,
)
from hydrasurgeon.errors import CheckpointError, Disagreement, HydraError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.files.decided import BESIDE, FITTED, PREFIX
from hydrasurgeon.files.history import installed
from hydrasurgeon.files.manifest import OF_WORDS, Input, Model, first_mistake, parse_manifest
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256
from hydrasurgeon.lookup import need
from hydrasurgeon.run.tokenizing import TYPES, stored
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.statistics.padded_words import NOTHING, mean_of_words
from hydrasurgeon.statistics.scores.fitted import Given

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.engines.onnx.program import Exported
    from hydrasurgeon.runtime.classifier import Classifier

UNSEEN = {"history", "record_sha256", "weights_sha256", "scores", "decision"}
"""Fields of a manifest that no graph depends on."""


@dataclass(frozen=True)
class Graph(Checkpoint):
    """An exported graph, opened as a checkpoint: it runs as it is."""

    file: Path = Path()
    """The graph itself, where `path` is a folder around it."""
    contents: GraphContents = field(default_factory=GraphContents)
    costs: Told | None = None

    @property
    def stem(self) -> str:
        return self.path.name.removesuffix(ENDING)

    def graph_sha256(self) -> str:
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digests(self) -> dict[str, str]:
        """Return nothing: the file was hashed when it was opened."""
        return {}

    def record(self, digests: Mapping[str, str]) -> Input:
        return Input(name=self.name, sha256=self.manifest.weights_sha256)


def open_graph(path: Path, *, folder: Path | None = None) -> Graph:
    """Open a graph that `export` wrote, alone or in a folder; refuse any other."""
    contents = read_contents(path)
    metadata = contents.metadata
    if f"{METADATA}told" not in metadata or "logits" not in contents.outputs:
        raise CheckpointError(f"{path}: is not a graph that `export` wrote", hint=HINT)
    if not is_sound(path):
        raise Disagreement(f"{path}: is not the graph that `export` wrote", hint=HINT)
    try:
        costs = Told.model_validate_json(metadata[f"{METADATA}told"])
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_mistake(error)}") from error
    manifest = parse_manifest(metadata[f"{METADATA}manifest"], f"{path} (manifest)")
    if manifest.decision is not None and folder is None:  # a graph alone answers whole
        plain = manifest.decision.model_copy(update={"cascade": None})
        manifest = manifest.model_copy(update={"decision": plain})
    family, where = family_of(manifest.model), f"{path} (files)"
    files = companions_inside(metadata.get(f"{METADATA}files", "{}"), family=family, where=where)
    family.check(manifest.model, manifest.towers, str(path))
    family.check_files(manifest.model, files, str(path))
    return Graph(
        folder or path,
        family,
        Tensors([]) if folder is None else _decision(folder, costs),
        manifest,
        recorded=True,
        files=files,
        file=path,
        contents=contents,
        costs=costs,
        engine=next((k.name for k in kinds() if k.operator in contents.operators), Onnx.name),
    )


def kinds() -> Iterator[Onnx]:
    """Yield the engines that run graphs."""
    return (kind for kind in ENGINES if isinstance(kind, Onnx))


def open_folder(folder: Path, engine: str) -> Graph:
    """Open the graph for this engine in a folder that `export` wrote. `auto` takes the engine that
    the decision state was fitted for.
    """
    for kind in (kind for kind in kinds() if not kind.exact and engine in ("auto", kind.name)):
        place = folder / GRAPHS / kind.files[0]
        if place.is_file():
            opened = open_graph(place, folder=folder)
            decision = opened.manifest.decision
            if engine == kind.name or (decision is not None and decision.engine == kind.name):
                return opened
        elif engine == kind.name:
            raise UsageError(
                f"--engine {engine}: {folder} holds no graph for it",
                hint=f"Export it with --{engine} --check DATA.",
            )
    return open_graph(folder / GRAPHS / GRAPH, folder=folder)


def read_contents(path: Path) -> GraphContents:
    """Return the contents of a graph's file, without its weights."""
    return read_plain(mapped(path), str(path))


def _decision(folder: Path, costs: Told) -> Tensors:
    """Open the tensors of a folder's decision state."""
    if costs.decision is None:
        return Tensors([])
    tensors = Tensors([TensorFile(folder / BESIDE)])
    if weights_sha256(tensors, tensors.digests()) != costs.decision:
        raise Disagreement(f"{folder / BESIDE}: the decision belongs to another graph", hint=HINT)
    return tensors


class GraphEngine(Engine):
    """A graph as an engine."""

    arrays = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        run: Run,
        contents: GraphContents,
        outputs: Sequence[str],
        *,
        state: State | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.name, self.manifest, self.state = checkpoint.name, checkpoint.manifest, state
        words = None if state is None else state.words
        self.transform = with_reader(transform_of(checkpoint, contents), words)
        self._checkpoint, self._run, self._outputs, self._notes = checkpoint, run, outputs, notes
        self._inputs = contents.inputs

    @cached_property
    def live(self) -> Classifier:
        """The model that the graph was captured from, to count in."""
        from hydrasurgeon.runtime.classifier import as_classifier

        return as_classifier(self._checkpoint, device="cpu", lean=True)

    @property
    def costs(self) -> Told | None:
        """Costs that the graph's file records."""
        return getattr(self._checkpoint, "costs", None)

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

    def __call__(self, inputs: Any) -> dict[str, NDArray[Any]]:
        named = _named(inputs)
        fed = {name: np.asarray(named[name]) for name in self._inputs if name in named}
        for name in self._inputs:  # a folder's graph reads types, whatever the model was tuned on
            if name not in fed and fed:
                fed[name] = np.zeros_like(next(iter(fed.values())))
        with running(f"{self.name}: its graph cannot be run"):
            outputs = dict(zip(self._outputs, self._run(fed), strict=True))
        if MEMBERS in outputs:
            outputs["logits"] = outputs.pop(MEMBERS)
        self._check_shapes(outputs, len(next(iter(fed.values()))))
        return outputs

    def _check_shapes(self, outputs: Arrays, rows: int) -> None:
        """Refuse outputs that are not what the manifest says there are."""
        model = self.facts
        logits, score = outputs["logits"], outputs.get("ood_score")
        expected = (rows, self.members, model.num_classes)
        shape = (*logits.shape[:2], *logits.shape[-1:])
        if logits.ndim != len(self.task.axes) or shape != expected:
            difference = f"logits {[*logits.shape]}, expected {[*expected]}"
        elif score is not None and score.shape != (rows,):
            difference = f"ood_score {[*score.shape]}, expected {[rows]}"
        else:
            return
        raise CheckpointError(f"{self.name}: its graph gives {difference}", hint=HINT)

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
        return Said(np.arange(len(logits)), logits, read)


def transform_of(checkpoint: Checkpoint, contents: GraphContents) -> Any:
    """Return a function from samples to a graph's inputs that does without the model's library: by
    Pillow and numpy, or with the tokenizer that the file holds.
    """
    model = checkpoint.manifest.model
    if "input_size" in model.preprocess:
        return checkpoint.family.pictures(model, files=checkpoint.files)
    text, names = contents.metadata.get(f"{METADATA}tokenizer", ""), contents.inputs
    load = partial(stored, text, names=names, where=checkpoint.name)
    length = int(model.preprocess["max_length"])
    if model.pooling == OF_WORDS:
        return TokenizeWords(load, max_length=length, inputs="text")
    return Tokenize(load, max_length=length, inputs=model.inputs, typed=TYPES in names)


def of_words(tokens: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Rearrange values of tokens [window, member, token, class] to values of words [text, member,
    word, class].
    """
    members, klasses = tokens.shape[1], tokens.shape[-1]
    flat = tokens.swapaxes(0, 1).reshape(members, -1, klasses)
    nothing = np.full((members, 1, klasses), NOTHING, tokens.dtype)
    held = np.concatenate([flat, nothing], axis=1)  # −1 is the last place
    return held[:, places].swapaxes(0, 1)


def _named(inputs: Any) -> Mapping[str, Any]:
    """Return a graph's inputs by name."""
    return inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}


def captured(checkpoint: Checkpoint) -> tuple[Exported, Mapping[str, Tensor]]:
    """Capture the graph of a checkpoint, in float32, and draw inputs to balance it on."""
    from hydrasurgeon.engines.onnx.exporter import to_onnx
    from hydrasurgeon.engines.onnx.program import inputs_of
    from hydrasurgeon.runtime.classifier import as_classifier

    model = as_classifier(checkpoint, device="cpu", lean=True)
    return to_onnx(model, plain=True), inputs_of(model)


def as_engine(
    checkpoint: Checkpoint, kind: Onnx, *, keep: bool, parts: Parts | None = None
) -> GraphEngine:
    """Return an engine for a graph: the file's own, or one that is captured from the checkpoint,
    once for all that share `parts`.
    """
    if isinstance(checkpoint, Graph):
        return _exported(checkpoint)
    place = place_of(checkpoint, kind.name)

    def make() -> bytes | None:
        need("torch", *kind.makers, purpose=f"{checkpoint.name}: making its graph")
        alone = keep and parts is None and "torch" not in sys.modules
        if alone and _made_apart(checkpoint, kind.name, place):
            return None
        plain = undecided(checkpoint)  # the same before and after `calibrate`
        shared: Parts = {} if parts is None else parts
        if "graph" not in shared:
            shared["graph"] = captured(plain)
        return kind.converted(*shared["graph"]).content

    file, contents, notes = _file(place, make, keep)
    run = runner_of(session_of(file), contents.outputs)
    state = state_in(checkpoint)
    return GraphEngine(checkpoint, run, contents, contents.outputs, state=state, notes=notes)


def _exported(graph: Graph) -> GraphEngine:
    """Return the engine of a graph that `export` wrote."""
    names = graph.contents.outputs
    state = _state_of_outputs(graph)
    if MEMBERS in names:
        state, names = state_in(graph), [name for name in names if name in (MEMBERS, "features")]
    with running(f"{graph.file}: cannot be read"):
        run = ended_by_signals(session_of(graph.file), names)
    return GraphEngine(graph, run, graph.contents, names, state=state)


def place_of(checkpoint: Checkpoint, engine: str) -> Path:
    """Return the path of a checkpoint's graph in the cache. The name depends on the weights and on
    the versions of the packages that make it.
    """
    digests, _ = checkpoint.hashes()
    weights = {
        name: info for name, info in checkpoint.tensors.items() if not name.startswith(PREFIX)
    }
    facts = [
        engine,
        weights_sha256(weights, digests),
        checkpoint.manifest.model_dump(mode="json", exclude=UNSEEN),
        [installed(package) for package in ("hydrasurgeon", "torch", "onnxscript")],
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    root = os.environ.get("HYDRASURGEON_CACHE", Path.home() / ".cache" / "hydrasurgeon")
    return Path(root, "graphs", f"{digest[:32]}.whole{ENDING}")


APART = "import pickle, sys; from hydrasurgeon.engines.onnx.graph import leave_in_cache as leave; leave(*pickle.load(sys.stdin.buffer))"
"""Code of a process that makes a graph."""


def _made_apart(checkpoint: Checkpoint, engine: str, place: Path) -> bool:
    """Make a graph in another process, which takes the memory of PyTorch with it when it ends: a
    gigabyte that a long job would hold. Return whether the graph is in the cache.
    """
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(place.parent, os.W_OK):
        return False
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", APART],
        input=pickle.dumps((checkpoint, engine)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    if done.stdout:
        error: HydraError = pickle.loads(done.stdout)
        raise error
    return done.returncode == 0 and place.is_file() and is_sound(place, of=place.stem)


def leave_in_cache(checkpoint: Checkpoint, engine: str) -> None:
    """Make a graph and keep it; an error of ours goes to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the waiting one, too
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    import_module("torch")  # so that it is made here
    try:
        engine_named(engine).load(checkpoint, device="cpu", dtype="float32", keep=True, parts=None)
    except HydraError as error:
        replies.write(pickle.dumps(error))
    replies.close()


def _file(
    place: Path, make: Callable[[], bytes | None], keep: bool
) -> tuple[Path | bytes, GraphContents, tuple[str, ...]]:
    """Return a graph from the cache, or make it now and keep it there; its contents; and notes.
    `make` returns None if it put the graph there itself.
    """
    if place.is_file() and is_sound(place, of=place.stem):
        return place, read_contents(place), ()
    content, folder = make(), place.parent
    kept = f"the graph was made, and is kept in {folder} (HYDRASURGEON_CACHE)"
    if content is None:
        return place, read_contents(place), (kept,)
    contents = read_plain(content, place.name)
    if not keep:
        return content, contents, ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(place, sealed(content, of=place.stem))
    except (OSError, HydraError):
        note = f"the graph is built in each run, as {folder} cannot be written"
        return content, contents, (note,)
    return place, contents, (kept,)


def _state_of_outputs(graph: Graph) -> State | None:
    """Return the decision state of a graph that decides."""
    record = graph.manifest.decision
    if record is None or not {*DECIDED} <= {*graph.contents.outputs}:
        return None
    kind = record.ood.score
    return State(record, Given(kind, (), ()) if kind in FITTED else None)
