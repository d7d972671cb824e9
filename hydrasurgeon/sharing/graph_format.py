"""The format `onnx`: one graph in a file, or a folder that clients of ONNX Runtime load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, undecided
from hydrasurgeon.checkpoints.class_names import need_classes, with_inputs
from hydrasurgeon.checkpoints.folder import GRAPH
from hydrasurgeon.checkpoints.writing import claim_checkpoint
from hydrasurgeon.engines import engine_named, fitted_otherwise
from hydrasurgeon.engines.onnx import ENDING, Onnx
from hydrasurgeon.engines.onnx.runtimes import quiet
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import named, output_file, staged, write_bytes
from hydrasurgeon.sharing.base import Export, Format, uncalibrated, without_words

if TYPE_CHECKING:
    from hydrasurgeon.engines.onnx.program import Exported
    from hydrasurgeon.options.measuring import ExportOptions
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.sharing.trial import Answer

ALONE = "only hydrasurgeon uses the bag-of-words model; other clients get the model's own logits, not calibrated"
"""Note for a folder whose graph cannot hold the decision state."""


class GraphFormat(Format):
    """Outputs of a graph are logits [batch, member, class] and probs; with a decision state they
    are logits, probabilities, uncertainty, ood_score and unfamiliar.
    """

    name = "onnx"
    help = "a graph"
    options = ("int8", "check")
    packages = ("onnx", "onnxscript", "onnxruntime")

    def write(self, opened: Checkpoint, arguments: ExportOptions) -> Export:
        """Write a graph. A folder's has calibrated logits; that of an inexact engine is added if it
        is asked for, or if the decision state was fitted to it.
        """
        quiet()
        folder = arguments.out is not None and named(arguments.out)[1]
        path = _place(opened, arguments, folder=folder)
        need_classes(opened.manifest, opened.path)
        opened.check_weights()
        from hydrasurgeon.engines.onnx.exporter import OPSET, to_onnx
        from hydrasurgeon.engines.onnx.onnx_header import sealed
        from hydrasurgeon.engines.onnx.program import inputs_of
        from hydrasurgeon.files.tensors import weights_sha256
        from hydrasurgeon.sharing import graph_folder, trial
        from hydrasurgeon.tasks import task_of
        from hydrasurgeon.tasks.base import need_feature

        left: tuple[str, ...] = ()
        if folder:
            graph_folder.check_client(opened)
        elif opened.manifest.decision is not None:
            task = task_of(opened.manifest.model)
            need_feature(task, "a decision state in a graph", opened.name)
            opened, left = without_words(opened)
        tried = None
        if arguments.check is not None:
            need_feature(task_of(opened.manifest.model), "--check", opened.name)
            tried = trial.opened_trial(opened.manifest.model, arguments.check, arguments)
        if tried is not None and not folder:
            opened = with_inputs(opened, tried.samples)
            left += (tried.samples.note,) if tried.samples.note else ()
        models = _folder_models(opened) if folder else _file_models(opened)
        model, typed, answer = models.model, models.typed, models.answer
        decision = opened.manifest.decision
        kind = _other_engine(arguments, None if decision is None or not folder else decision.engine)
        graph = to_onnx(typed, stock=folder, of=models.decided)
        notes, other, quantised, checked = left + models.notes, None, None, None
        if tried is not None and (folder or kind is None):
            checked = tried.compared(model, trial.in_torch(model), answer(graph))
        if kind is not None:
            other = kind.converted(graph, inputs_of(typed))
        if tried is not None and kind is not None and other is not None:
            quantised = tried.compared(model, answer(graph), answer(other), who=kind.name)
            worst = trial.difference(model, answer(other), tried.samples, who=kind.name)
            other = replace(other, max_difference=worst)
            notes += (*filter(None, [fitted_otherwise(opened, kind.name)]),)
        written = graph if other is None or tried is None else other
        costs, tensors = graph_folder.costs_of(typed, graph), graph_folder.decision_tensors(opened)
        if folder and len(tensors):
            digest = weights_sha256(tensors, tensors.digests())
            costs = costs.model_copy(update={"decision": digest})
        content = sealed((other or graph).content, costs)
        if folder:
            graphs = {GRAPH: sealed(graph.content, costs)}
            if kind is not None:
                graphs |= dict.fromkeys(kind.files, content)
            with staged(path) as place:
                texts = graph_folder.graph_texts(models.client_checkpoint)
                graph_folder.fill_graphs(place, texts, tensors, graphs)
        else:
            write_bytes(path, content)
        return Export(
            path,
            len(content),
            written.inputs,
            written.outputs,
            written.max_difference,
            format=self.name,
            opset=OPSET,
            quantised=quantised,
            checked=checked,
            notes=notes,
        )


@dataclass(frozen=True)
class _GraphModels:
    """Models that a graph is made from and compared with."""

    model: Classifier
    """The model that clients of the graph answer by."""
    typed: Classifier
    """The model whose graph is exported."""
    answer: Callable[[Exported], Answer]
    """Turns a graph into a function that gives its answers."""
    notes: tuple[str, ...]
    client_checkpoint: Checkpoint
    """The checkpoint that other clients of a folder are told about."""
    decided: Classifier | None = None
    """The model whose decision state a folder's graph holds."""


def _folder_models(opened: Checkpoint) -> _GraphModels:
    """Return the models of a folder, which answers by calibrated logits where a graph can."""
    from hydrasurgeon.engines.onnx.program import clients_decide
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing import graph_folder

    decided = model = as_classifier(opened, device="cpu")
    client_checkpoint, notes = opened, uncalibrated(opened)
    if opened.manifest.decision is not None and not clients_decide(model):
        client_checkpoint = undecided(opened)
        model = as_classifier(client_checkpoint, device="cpu")
        notes += (ALONE,)
    typed = as_classifier(graph_folder.with_types(opened), device="cpu")
    answer = partial(graph_folder.answering, model=model)
    return _GraphModels(model, typed, answer, notes, client_checkpoint, decided)


def _file_models(opened: Checkpoint) -> _GraphModels:
    """Return the model of a single file, in the form that engines run: their graphs are the same."""
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing import trial

    model = as_classifier(opened, device="cpu", lean=True)
    return _GraphModels(model, model, trial.in_file, (), opened)


def _other_engine(arguments: ExportOptions, fitted: str | None) -> Onnx | None:
    """Return the engine that another graph is made for, besides that in float32: the one that an
    option names, or that a decision state was `fitted` for.
    """
    name = arguments.engine or fitted
    if name is None:
        return None
    option = "--engine" if arguments.engine is None else f"--{name}"
    kind = engine_named(name, option=option)
    assert isinstance(kind, Onnx)
    return kind


def _place(opened: Checkpoint, arguments: ExportOptions, *, folder: bool) -> Path:
    """Return the path of the graph, after checking that it can be written."""
    if folder:
        assert arguments.out is not None
        return claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    if str(arguments.out) == "-":
        raise UsageError("-o -: export cannot write to stdout", hint="Give -o FILE.")
    target = arguments.out or opened.home.with_name(f"{opened.home.stem}{ENDING}")
    return output_file(target, option="-o", force=arguments.force, inputs=arguments.sources)
