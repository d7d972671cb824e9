"""export: a pruned model or a hydra for other runtimes and libraries; kept only if it gives the
same outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import classifying, need_classes, with_inputs
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.engines import fitted_otherwise
from hydrasurgeon.errors import SurgeryError, UsageError
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
    from hydrasurgeon.sharing.trial import Compared


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
    quantised: Compared | None = None
    """What int8 changed, where it was asked for."""
    checked: Compared | None = None
    """Without int8: the model's and the file's answers on the data of `--check`."""
    notes: tuple[str, ...] = ()
    """What was assumed of the checkpoint."""


@stage(ExportOptions)
def export(arguments: ExportOptions) -> Export:
    """Write the checkpoint for another runtime (onnx), or for its own library with its calibration
    in its last layer (stock).

    Outputs of a graph are logits [batch, member, class] and probs; with a decision state they are
    logits, probabilities, uncertainty, ood_score and unfamiliar.
    """
    _check(arguments)
    opened = classifying(open_checkpoint(arguments.checkpoint, arch=arguments.arch), arguments)
    result = _writer(arguments)(opened, arguments)
    return replace(result, notes=((opened.note,) if opened.note else ()) + result.notes)


def _writer(arguments: ExportOptions) -> Callable[[Checkpoint, ExportOptions], Export]:
    """What writes the format."""
    if arguments.format == "stock":
        return _stock
    if arguments.out is not None and named(arguments.out)[1]:
        return _graph_in_folder
    return _graph


def _check(arguments: ExportOptions) -> None:
    """Options that belong to one format, and the packages that it needs."""
    if arguments.format == "onnx":
        from hydrasurgeon.engines.onnx import quiet

        quiet()
        # onnxscript is what torch writes with; onnxruntime proves what it wrote.
        need("onnx", "onnxscript", "onnxruntime", purpose="export --format onnx")
        return
    for option in ("int8", "check"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} requires --format onnx")


def _graph(opened: Checkpoint, arguments: ExportOptions) -> Export:
    """One graph in one file."""
    if arguments.out is not None and str(arguments.out) == "-":
        raise UsageError("-o -: a graph is checked as a file", hint="Give -o FILE.")
    target = arguments.out or opened.home.with_name(f"{opened.home.stem}.{arguments.format}")
    path = output_file(target, option="-o", force=arguments.force, inputs=arguments.sources)
    if not opened.manifest.model.num_classes:
        raise SurgeryError(
            f"{opened.name}: has no classifier", hint="Finetune it first, or give CLIP --classes."
        )
    opened.check_weights()
    from hydrasurgeon.problems import problem_of

    if arguments.check is not None:
        problem_of(opened.manifest.model).need("--check", opened.name)
    if opened.manifest.decision is not None:
        problem_of(opened.manifest.model).need("a decision state in a graph", opened.name)
    from hydrasurgeon.engines.int8 import inputs_of, to_int8
    from hydrasurgeon.engines.onnx import OPSET, to_onnx
    from hydrasurgeon.engines.sealed import sealed
    from hydrasurgeon.measuring.cost import told_of
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing import trial

    about, check = opened.manifest.model, arguments.check
    tried = None if check is None else trial.opened_trial(about, check, arguments)
    opened = opened if tried is None else with_inputs(opened, tried.samples)
    # As the engines run it: an exported graph and theirs are the same.
    model = as_classifier(opened, device="cpu", lean=True)
    made = to_onnx(model)
    quantised = checked = None
    notes: tuple[str, ...] = ()
    if tried is not None and tried.samples.note is not None:
        notes = (tried.samples.note,)
    if tried is not None and arguments.int8:
        floating, made = made, to_int8(made, inputs_of(model))
        quantised = tried.compared(model, trial.in_file(floating), trial.in_file(made), who="int8")
        worst = trial.difference(model, trial.in_file(made), tried.samples)
        made = replace(made, max_difference=worst)
        notes += (*filter(None, [fitted_otherwise(opened, "int8")]),)
    elif tried is not None:
        checked = tried.compared(model, trial.in_torch(model), trial.in_file(made))
    content = sealed(made.content, told_of(model, made))
    write_bytes(path, content)
    return Export(
        path,
        len(content),
        made.inputs,
        made.outputs,
        made.max_difference,
        OPSET,
        quantised=quantised,
        checked=checked,
        notes=notes,
    )


def _stock(opened: Checkpoint, arguments: ExportOptions) -> Export:
    """The model as its library has it, calibrated."""
    out = arguments.out or f"{opened.home.with_name(f'{opened.home.stem}-stock')}/"
    path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
    if path.suffix == SUFFIX:
        raise UsageError(f"-o {out}: libraries read directories", hint="Give -o DIR/.")
    need_classes(opened.manifest, opened.path)
    opened.check_weights()
    from hydrasurgeon.sharing.stock import difference_when_folded, folded

    made = folded(opened)
    difference = difference_when_folded(opened)
    save(path, made.planned, made.manifest, files=opened.files, more=made.more)
    nbytes = sum(plan.nbytes for plan in made.planned)
    notes = _uncalibrated(opened)
    return Export(path, nbytes, (), (), difference, None, "stock", notes=notes)


def _graph_in_folder(opened: Checkpoint, arguments: ExportOptions) -> Export:
    """A graph of calibrated logits where clients look for one, and with --int8 another."""
    assert arguments.out is not None
    path = claim_checkpoint(arguments.out, force=arguments.force, inputs=arguments.sources)
    need_classes(opened.manifest, opened.path)
    opened.check_weights()
    from hydrasurgeon.engines.int8 import inputs_of, to_int8
    from hydrasurgeon.engines.onnx import OPSET, to_onnx
    from hydrasurgeon.problems import problem_of
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing import stock, trial

    stock.check_client(opened)
    about = opened.manifest.model
    if opened.manifest.decision is not None:
        problem_of(about).need("a decision state in a graph", opened.name)
    tried = None
    if arguments.check is not None:
        problem_of(about).need("--check", opened.name)
        tried = trial.opened_trial(about, arguments.check, arguments)
    model = as_classifier(opened, device="cpu")
    typed, small = as_classifier(stock.with_types(opened), device="cpu"), None
    made = to_onnx(typed, stock=True)
    quantised = checked = None
    notes = _uncalibrated(opened)
    worst = made.max_difference
    if tried is not None:
        floating = stock.answering(made, model)
        checked = tried.compared(model, trial.in_torch(model), floating)
    if tried is not None and arguments.int8:
        small = to_int8(made, inputs_of(typed))
        answer = stock.answering(small, model)
        quantised = tried.compared(model, floating, answer, who="int8")
        worst = trial.difference(model, answer, tried.samples)
        notes += (*filter(None, [fitted_otherwise(opened, "int8")]),)
    with staged(path) as folder:
        stock.fill_graphs(folder, stock.graph_texts(opened), made, small)
    return Export(
        path,
        len((small or made).content),
        made.inputs,
        made.outputs,
        worst,
        OPSET,
        quantised=quantised,
        checked=checked,
        notes=notes,
    )


def _uncalibrated(opened: Checkpoint) -> tuple[str, ...]:
    if opened.manifest.decision is not None:
        return ()
    return (
        "it has no decision state: its probabilities are what training made them; calibrate first",
    )
