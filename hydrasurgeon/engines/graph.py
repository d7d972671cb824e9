"""The engines `onnx` and `int8`: onnxruntime runs a model's graph, on the processor.

The graph is captured from a checkpoint once and kept in a cache, or read from a file that `export`
wrote, which says what it is as a checkpoint does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.checkpoints.folder import companions_inside
from hydrasurgeon.checkpoints.reading import Checkpoint, undecided
from hydrasurgeon.decision.cascaded import Said, in_steps
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.int8 import quantised
from hydrasurgeon.engines.onnx import session_of, to_onnx, wanted
from hydrasurgeon.engines.program import DECIDED, METADATA, Run
from hydrasurgeon.errors import CheckpointError, HydraError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import write_bytes
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.foreign import open_regular
from hydrasurgeon.files.history import installed
from hydrasurgeon.files.manifest import Input, Model, parse_manifest
from hydrasurgeon.files.tensors import Tensors
from hydrasurgeon.options.engines import ENDING
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.runtime.classifier import Classifier, as_classifier, state_in
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

OTHERWISE = (
    "{name}: its decision state was fitted to another engine's outputs; "
    "run calibrate --engine {engine}"
)
"""What to say of a state that was fitted to float32's outputs and decides in 8 bits, or the other
way round.
"""
UNSEEN = {"history", "record_sha256", "weights_sha256", "scores"}
"""What a manifest says that no graph depends on."""
HINT = "Export the checkpoint again; answers of other models go to --predictions-in of eval."
"""What to do about a graph that does not say what it is."""


@dataclass(frozen=True)
class Graph(Checkpoint):
    """An exported graph, opened as a checkpoint: it runs as it is."""

    run: Run | None = None
    outputs: tuple[str, ...] = ()

    def digests(self) -> dict[str, str]:
        """There are no tensors to hash: the graph is proven when it is written."""
        return {}

    def record(self, digests: Mapping[str, str]) -> Input:
        return Input(name=self.name, sha256=self.manifest.weights_sha256)


def open_graph(path: Path) -> Graph:
    """A graph that `export` wrote; another is refused."""
    open_regular(path).close()
    try:
        session = session_of(str(path))
    except Exception as error:  # onnxruntime raises a kind of its own for every kind of damage
        why = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{path}: onnxruntime cannot read it ({why})", hint=HINT) from error
    said = session.get_modelmeta().custom_metadata_map
    outputs = tuple(output.name for output in session.get_outputs())
    if f"{METADATA}manifest" not in said or "logits" not in outputs:
        raise CheckpointError(f"{path}: is no graph that `export` wrote", hint=HINT)
    manifest = parse_manifest(said[f"{METADATA}manifest"], f"{path} (manifest)")
    if manifest.decision is not None:  # all members answer in one graph
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
        run=wanted(session, outputs),
        outputs=outputs,
    )


@dataclass(frozen=True)
class ScoredInGraph(EnsembleScore):
    """An OOD score that the graph computes: it comes in place of features."""

    def among(self, members: Sequence[int]) -> ScoredInGraph:
        return self

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        return features[:, 0, 0]


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
        self.transform = checkpoint.family.transform(model, files=checkpoint.files)
        self._checkpoint, self._run, self._outputs, self._notes = checkpoint, run, outputs, notes

    @cached_property
    def live(self) -> Classifier | None:
        """The model that the graph was captured from, to count in."""
        if isinstance(self._checkpoint, Graph):
            return None
        return as_classifier(self._checkpoint, device="cpu", lean=True)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def facts(self) -> Model:
        return self.manifest.model

    @property
    def members(self) -> int:
        return len(self.manifest.members) if self.manifest.kind == "hydra" else 1

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        fed = inputs if isinstance(inputs, Mapping) else {"pixel_values": inputs}
        return dict(zip(self._outputs, self._run(fed), strict=True))

    def ask(self, inputs: Any, *, cascade: bool = False, features: bool = False) -> list[Said]:
        answers = self(inputs)
        logits, read = answers["logits"], answers.get("features")
        if "ood_score" in answers:  # of a file that decides; it has no features
            read = answers["ood_score"][:, None, None]
        elif not features:
            read = None
        self.check(logits)
        if cascade:
            assert self.state is not None
            assert self.state.record.cascade is not None
            return in_steps(self.state, self.state.record.cascade, logits, read)[0]
        return [Said(torch.arange(len(logits)), tuple(range(self.members)), logits, read)]


def in_onnxruntime(checkpoint: Checkpoint, engine: str, *, keep: bool) -> InOnnxruntime:
    """A graph that runs: the file's own, or one that is captured from the checkpoint."""
    if isinstance(checkpoint, Graph):
        assert checkpoint.run is not None
        state = _state_of(checkpoint)
        return InOnnxruntime(checkpoint, checkpoint.run, checkpoint.outputs, state=state).eval()
    place = _place(checkpoint, engine)
    notes: tuple[str, ...] = ()
    if place.is_file():
        session = session_of(str(place))
    else:
        content = _captured(checkpoint, engine)
        session = session_of(content)
        if keep:
            notes = (_keep(place, content, checkpoint.name),)
    outputs = [output.name for output in session.get_outputs()]
    state = state_in(checkpoint)
    if state is not None and (state.record.engine == "int8") != (engine == "int8"):
        notes += (OTHERWISE.format(name=checkpoint.name, engine=engine),)
    run = wanted(session, outputs)
    return InOnnxruntime(checkpoint, run, outputs, state=state, notes=notes).eval()


def _captured(checkpoint: Checkpoint, engine: str) -> bytes:
    """The graph of a checkpoint, which gives what decisions are taken by."""
    content = to_onnx(as_classifier(checkpoint, device="cpu", lean=True), plain=True).content
    if engine == "int8":
        return quantised(content)
    return content


def _place(checkpoint: Checkpoint, engine: str) -> Path:
    """Where the graph is kept: its name says of which weights it is, and which versions made it."""
    plain = undecided(checkpoint)
    facts = [
        engine,
        plain.record(plain.hashes()[0]).sha256,
        plain.manifest.model_dump(mode="json", exclude=UNSEEN),
        [installed(package) for package in ("hydrasurgeon", "torch", "onnxscript")],
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    root = os.environ.get("HYDRASURGEON_CACHE", Path.home() / ".cache" / "hydrasurgeon")
    return Path(root, "graphs", f"{digest[:32]}{ENDING}")


def _keep(place: Path, content: bytes, name: str) -> str:
    """Write a graph where the next run finds it; what to say of it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, content)
    except (OSError, HydraError):
        return f"{name}: its graph is made in each run, for {place.parent} cannot be written"
    return f"{name}: its graph was made, and is kept in {place.parent} (HYDRASURGEON_CACHE)"


def _state_of(graph: Graph) -> State | None:
    """The decision state of a graph that decides."""
    record = graph.manifest.decision
    if record is None or not {*DECIDED} <= {*graph.outputs}:
        return None
    kind = record.ood.score
    return State(record, ScoredInGraph(kind, (), ()) if kind in FITTED else None)
