"""The format `onnx`: one graph in a file, or a folder that clients of ONNX Runtime load."""

from __future__ import annotations

from dataclasses import replace
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
    from collections.abc import Callable

    from hydrasurgeon.engines.onnx.program import Exported
    from hydrasurgeon.options.measuring import ExportOptions
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
        from hydrasurgeon.engines.onnx.program import clients_decide, inputs_of
        from hydrasurgeon.files.tensors import weights_sha256
        from hydrasurgeon.runtime.classifier import as_classifier
        from hydrasurgeon.sharing import graph_folder, trial
        from hydrasurgeon.tasks import task_of
        from hydrasurgeon.tasks.base import need_feature

        if folder:
            graph_folder.check_client(opened)
        about, decision = opened.manifest.model, opened.manifest.decision
        left: tuple[str, ...] = ()
        if decision is not None and not folder:
            need_feature(task_of(about), "a decision state in a graph", opened.name)
            opened, left = without_words(opened)
        tried = None
        if arguments.check is not None:
            need_feature(task_of(about), "--check", opened.name)
            tried = trial.opened_trial(about, arguments.check, arguments)
        answer: Callable[[Exported], Answer] = trial.in_file
        stock_checkpoint, classifier = opened, None
        if folder:
            classifier = model = as_classifier(opened, device="cpu")
            typed = as_classifier(graph_folder.with_types(opened), device="cpu")
            notes = uncalibrated(opened)
            if decision is not None and not clients_decide(model):
                stock_checkpoint = undecided(opened)  # what other clients answer by
                model = as_classifier(stock_checkpoint, device="cpu")
                notes += (ALONE,)
            answer = partial(graph_folder.answering, model=model)
        else:
            opened = opened if tried is None else with_inputs(opened, tried.samples)
            # As the engines run it: an exported graph and theirs are the same.
            typed = model = as_classifier(opened, device="cpu", lean=True)
            notes = left if tried is None or not tried.samples.note else (*left, tried.samples.note)
        kind = _other_engine(arguments, None if decision is None or not folder else decision.engine)
        graph, other = to_onnx(typed, stock=folder, of=classifier), None
        quantised = checked = None
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
                texts = graph_folder.graph_texts(stock_checkpoint)
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
