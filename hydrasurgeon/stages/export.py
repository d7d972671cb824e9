"""export: a pruned model or a hydra for other runtimes and libraries; kept only if it gives the
same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint, rewritten, undecided
from hydrasurgeon.checkpoints.class_names import classifying, need_classes, with_inputs
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.engines import fitted_otherwise
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import (
    SUFFIX,
    named,
    output_file,
    staged,
    write_bytes,
)
from hydrasurgeon.lookup import need
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import ExportOptions

if TYPE_CHECKING:
    from hydrasurgeon.engines.program import Exported
    from hydrasurgeon.sharing.trial import Answer, Compared


@dataclass(frozen=True)
class Export:
    path: Path
    nbytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output from torch's; in int8, of a probability."""
    opset: int | None = None
    """The version of ONNX's operators; None of another format."""
    format: str = "onnx"
    calibrated: bool = False
    """True where the calibration is in the last layer of what a library loads."""
    quantised: Compared | None = None
    """Effect of int8 on the answers; None without --int8."""
    checked: Compared | None = None
    """Without int8: the model's and the file's answers on the data of `--check`."""
    notes: tuple[str, ...] = ()
    """Assumptions about the checkpoint."""


ALONE = "only hydrasurgeon uses the decision state; other clients get the model's own logits"
"""Note for a folder whose graph cannot hold the decision state."""

WORDS = "the output has no decision state, as that uses a bag-of-words model: its answers are those of the model alone; -o DIR/ keeps the state for predict and serve"
"""Note for an output that cannot hold a bag-of-words model."""


PADDED = "its tokenizer pads on the left, so that answers would depend on the other texts of a batch; the exported one pads on the right"
"""Note for a tokenizer whose padding side is changed."""


@stage(ExportOptions)
def export(arguments: ExportOptions) -> Export:
    """Write the checkpoint for another runtime (onnx), or for its own library with its calibration
    in its last layer (stock).

    Outputs of a graph are logits [batch, member, class] and probs; with a decision state they are
    logits, probabilities, uncertainty, ood_score and unfamiliar.
    """
    _check(arguments)
    opened = classifying(open_checkpoint(arguments.checkpoint, arch=arguments.arch), arguments)
    notes = () if opened.note is None else (opened.note,)
    if _pads_left(opened):
        opened, notes = _padded_right(opened), (*notes, PADDED)
    result = (_stock if arguments.format == "stock" else _graph)(opened, arguments)
    return replace(result, notes=notes + result.notes)


def _pads_left(opened: Checkpoint) -> bool:
    """Return whether the checkpoint's tokenizer pads on the left where others call it."""
    if "max_length" not in opened.manifest.model.preprocess or not opened.files:
        return False
    transform = opened.family.transform(opened.manifest.model, files=opened.files)
    return bool(transform.tokenizer.padding_side == "left")  # type: ignore[attr-defined]


def _padded_right(opened: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a tokenizer that pads on the right, as all engines do."""
    model, files = opened.family.padded_right(opened.manifest.model, opened.files)
    return replace(opened, manifest=rewritten(opened.manifest, model=model), files=files)


def _check(arguments: ExportOptions) -> None:
    """Raise UsageError for options of another format, and require the packages that the format
    needs.
    """
    if arguments.format == "onnx":
        from hydrasurgeon.engines.runtimes import quiet

        quiet()
        # onnxscript is what torch writes with; onnxruntime proves what it wrote.
        need("onnx", "onnxscript", "onnxruntime", purpose="export --format onnx")
        return
    for option in ("int8", "check"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} requires --format onnx")


def _graph(opened: Checkpoint, arguments: ExportOptions) -> Export:
    """Write one graph into a file, or into a folder that clients of ONNX Runtime can load.

    A folder's graph has calibrated logits. An int8 graph is added with --int8, or where the
    decision state was fitted to one.
    """
    folder = arguments.out is not None and named(arguments.out)[1]
    path = _place(opened, arguments, folder=folder)
    need_classes(opened.manifest, opened.path)
    opened.check_weights()
    from hydrasurgeon.engines.int8 import inputs_of, to_int8
    from hydrasurgeon.engines.onnx import OPSET, to_onnx
    from hydrasurgeon.engines.onnx_header import sealed
    from hydrasurgeon.engines.program import clients_decide
    from hydrasurgeon.files.tensors import weights_sha256
    from hydrasurgeon.measuring.cost import told_of
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing import stock, trial
    from hydrasurgeon.tasks import task_of
    from hydrasurgeon.tasks.base import need_feature

    if folder:
        stock.check_client(opened)
    about, decision = opened.manifest.model, opened.manifest.decision
    left: tuple[str, ...] = ()
    if decision is not None and not folder:
        need_feature(task_of(about), "a decision state in a graph", opened.name)
        opened, left = _without_words(opened)
    tried = None
    if arguments.check is not None:
        need_feature(task_of(about), "--check", opened.name)
        tried = trial.opened_trial(about, arguments.check, arguments)
    answer: Callable[[Exported], Answer] = trial.in_file
    stock_checkpoint, classifier = opened, None
    if folder:
        classifier = model = as_classifier(opened, device="cpu")
        typed, notes = as_classifier(stock.with_types(opened), device="cpu"), _uncalibrated(opened)
        if decision is not None and not clients_decide(model):
            stock_checkpoint = undecided(opened)  # what other clients answer by
            model = as_classifier(stock_checkpoint, device="cpu")
            notes += (ALONE,)
        answer = partial(stock.answering, model=model)
    else:
        opened = opened if tried is None else with_inputs(opened, tried.samples)
        # As the engines run it: an exported graph and theirs are the same.
        typed = model = as_classifier(opened, device="cpu", lean=True)
        notes = left if tried is None or not tried.samples.note else (*left, tried.samples.note)
    graph, small = to_onnx(typed, stock=folder, of=classifier), None
    quantised = checked = None
    if tried is not None and (folder or not arguments.int8):
        checked = tried.compared(model, trial.in_torch(model), answer(graph))
    if arguments.int8 or (folder and decision is not None and decision.engine == "int8"):
        small = to_int8(graph, inputs_of(typed))
    if tried is not None and small is not None:
        quantised = tried.compared(model, answer(graph), answer(small), who="int8")
        worst = trial.difference(model, answer(small), tried.samples)
        small = replace(small, max_difference=worst)
        notes += (*filter(None, [fitted_otherwise(opened, "int8")]),)
    written = graph if small is None or tried is None else small
    facts, tensors = told_of(typed, graph), stock.decision_tensors(opened)
    if folder and len(tensors):
        facts = facts.model_copy(update={"decision": weights_sha256(tensors, tensors.digests())})
    content = sealed((small or graph).content, facts)
    if folder:
        eight_bits = None if small is None else content
        with staged(path) as place:
            texts = stock.graph_texts(stock_checkpoint)
            stock.fill_graphs(place, texts, tensors, sealed(graph.content, facts), eight_bits)
    else:
        write_bytes(path, content)
    return Export(
        path,
        len(content),
        written.inputs,
        written.outputs,
        written.max_difference,
        OPSET,
        quantised=quantised,
        checked=checked,
        notes=notes,
    )


def _place(opened: Checkpoint, arguments: ExportOptions, *, folder: bool) -> Path:
    """Return the path of the graph, after checking that it can be written."""
    if folder:
        assert arguments.out is not None
        return claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    if str(arguments.out) == "-":
        raise UsageError("-o -: export cannot write to stdout", hint="Give -o FILE.")
    target = arguments.out or opened.home.with_name(f"{opened.home.stem}.{arguments.format}")
    return output_file(target, option="-o", force=arguments.force, inputs=arguments.sources)


def _stock(opened: Checkpoint, arguments: ExportOptions) -> Export:
    """Write the calibrated model in the format of its own library."""
    out = arguments.out or f"{opened.home.with_name(f'{opened.home.stem}-stock')}/"
    path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    if path.suffix == SUFFIX:
        raise UsageError(f"-o {out}: --format stock writes a directory", hint="Give -o DIR/.")
    need_classes(opened.manifest, opened.path)
    opened.check_weights()
    from hydrasurgeon.sharing.stock import difference_when_folded, folded

    notes = _uncalibrated(opened)
    opened, left = _without_words(opened)
    stock_model = folded(opened)
    difference = difference_when_folded(opened)
    save(path, stock_model.planned, stock_model.manifest, files=opened.files, more=stock_model.more)
    nbytes = sum(plan.nbytes for plan in stock_model.planned)
    return Export(
        path,
        nbytes,
        (),
        (),
        difference,
        format="stock",
        calibrated=stock_model.calibrated,
        notes=notes + left,
    )


def _without_words(opened: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the checkpoint without a decision state that reads words, and a note if there was one."""
    decision = opened.manifest.decision
    if decision is None or decision.words is None:
        return opened, ()
    return undecided(opened), (WORDS,)


def _uncalibrated(opened: Checkpoint) -> tuple[str, ...]:
    if opened.manifest.decision is not None:
        return ()
    return (
        "it has no decision state: its probabilities are what training made them; calibrate first",
    )
