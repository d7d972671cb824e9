"""The engine `onnx`: onnxruntime runs a model's graph, on the processor and in float32.

The graph is captured from a checkpoint on the spot, or read from a file that `export` wrote, which
says what it is as a checkpoint does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.checkpoints.folder import companions_inside
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.decision.cascaded import Said, in_steps
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.onnx import session_of, to_onnx, wanted
from hydrasurgeon.engines.program import DECIDED, METADATA, Run
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.foreign import open_regular
from hydrasurgeon.files.manifest import Input, Manifest, Model, parse_manifest
from hydrasurgeon.files.tensors import Tensors
from hydrasurgeon.runtime.answering import Engine
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

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
    """A graph as an engine; `live` is the model that it was captured from."""

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        transform: Callable[[Any], Any],
        run: Run,
        outputs: Sequence[str],
        *,
        state: State | None,
        live: Classifier | None = None,
    ) -> None:
        super().__init__()
        self.name, self.manifest, self.transform, self.state = name, manifest, transform, state
        self.live = live
        self._run, self._outputs = run, outputs

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
        self.check(logits)
        if cascade:
            assert self.state is not None
            assert self.state.record.cascade is not None
            return in_steps(self.state, self.state.record.cascade, logits, read)[0]
        return [Said(torch.arange(len(logits)), tuple(range(self.members)), logits, read)]


def in_onnxruntime(checkpoint: Checkpoint) -> InOnnxruntime:
    """A graph that runs: the file's own, or one that is captured from the checkpoint now."""
    if isinstance(checkpoint, Graph):
        assert checkpoint.run is not None
        model = checkpoint.manifest.model
        transform = checkpoint.family.transform(model, files=checkpoint.files)
        return InOnnxruntime(
            checkpoint.name,
            checkpoint.manifest,
            transform,
            checkpoint.run,
            checkpoint.outputs,
            state=_state_of(checkpoint),
        ).eval()
    live = as_classifier(checkpoint, device="cpu", lean=True)
    made = to_onnx(live, plain=True)
    return InOnnxruntime(
        live.name,
        live.manifest,
        live.transform,
        made.run,
        made.outputs,
        state=live.state,
        live=live,
    ).eval()


def _state_of(graph: Graph) -> State | None:
    """The decision state of a graph that decides."""
    record = graph.manifest.decision
    if record is None or not {*DECIDED} <= {*graph.outputs}:
        return None
    kind = record.ood.score
    return State(record, ScoredInGraph(kind, (), ()) if kind in FITTED else None)
