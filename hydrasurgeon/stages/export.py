"""export: a pruned model or a hydra for other runtimes and libraries; the file is kept only if it gives the same
outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.class_names import with_class_names
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import CheckpointError, SurgeryError, UsageError
from hydrasurgeon.files.atomic import claim, fill, output_file, real, replacing, write_bytes
from hydrasurgeon.lookup import need
from hydrasurgeon.options.base import stage
from hydrasurgeon.options.measuring import ExportOptions

if TYPE_CHECKING:
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.sharing.onnx import Exported
    from hydrasurgeon.sharing.trial import Compared, Trial

FORMATS = ("onnx", "pt2", "padded")
"""What `--format` can be."""


@dataclass(frozen=True)
class Export:
    path: Path
    nbytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output from torch's."""
    opset: int | None = None
    """The version of ONNX's operators."""
    format: str = "onnx"
    beside: Path | None = None
    """The second graph of a cascade."""
    quantised: Compared | None = None
    """What int8 changed, where it was asked for."""
    checked: Compared | None = None
    """Without int8: the model's and the file's answers on the data of `--check`."""
    notes: tuple[str, ...] = ()
    """What was assumed of the checkpoint, or contradicts it."""


@stage(ExportOptions)
def export(arguments: ExportOptions) -> Export:
    """Write the checkpoint for another runtime (onnx, pt2) or, with zeros for the heads that are gone, for its own
    library (padded).

    Outputs of a graph are logits [batch, member, class] and probs; with a decision state they are logits,
    probabilities,
    uncertainty, ood_score and unfamiliar.
    """
    checkpoint = arguments.checkpoint
    _check(arguments)
    opened = with_class_names(
        open_checkpoint(checkpoint, arch=arguments.arch), classes=arguments.classes, templates=arguments.template
    )
    inputs = [checkpoint, arguments.classes, arguments.template, arguments.check, arguments.ood]
    result = _exported(opened, arguments, inputs)
    return replace(result, notes=((opened.note,) if opened.note else ()) + result.notes)


def _exported(opened: Checkpoint, arguments: ExportOptions, inputs: Sequence[object]) -> Export:
    """As its format is written."""
    if arguments.format == "padded":
        return _padded(opened, arguments, inputs)
    if arguments.cascade:
        return _in_steps(opened, arguments, inputs)
    if arguments.out is not None and str(arguments.out) == "-":
        raise UsageError("-o -: a graph is checked as a file", hint="Give -o FILE.")
    target = arguments.out or opened.home.with_name(f"{opened.home.stem}.{arguments.format}")
    path = output_file(target, option="-o", force=arguments.force, inputs=inputs)
    if not opened.manifest.model.num_classes:
        raise SurgeryError(f"{opened.name}: has no classifier", hint="Finetune it first, or give CLIP --classes.")
    opened.verify_hash()
    return _graph(opened, path, arguments)


def _check(arguments: ExportOptions) -> None:
    """Options that go together, and the packages that they need."""
    format = arguments.format
    if format not in FORMATS:
        raise UsageError(f"--format {format}: not known", hint=f"Use {', '.join(FORMATS)}.")
    for option, wanted, of in (
        ("--aot", arguments.aot, "pt2"),
        ("--member", arguments.member is not None, "padded"),
        ("--int8", arguments.int8, "onnx"),
        ("--cascade", arguments.cascade, "onnx"),
    ):
        if wanted and format != of:
            raise UsageError(f"{option}: belongs to --format {of}")
    if arguments.int8 and arguments.cascade:
        raise UsageError("--int8, --cascade: one file is tried, a cascade has two")
    if arguments.int8 and arguments.check is None:
        raise UsageError("--int8: needs data to compare answers on", hint="Give --check D.")
    if arguments.ood and arguments.check is None:
        raise UsageError("--ood: is compared beside labelled data", hint="Give --check D.")
    if arguments.limit is not None and arguments.check is None:
        raise UsageError(
            "--limit: belongs to --check, whose samples it counts", hint="Give --check D, or leave it out."
        )
    if arguments.check is not None and (format == "padded" or arguments.cascade):
        raise UsageError(
            "--check: tries one graph, of onnx or pt2",
            hint="Leave it out: the file is checked for each output as it is.",
        )
    if not 0 <= arguments.tolerance <= 1:
        raise UsageError(f"--tolerance {arguments.tolerance:g}: must lie between 0 and 1")
    if format == "onnx":
        from hydrasurgeon.sharing.onnx_session import quiet

        quiet()
        # onnxscript is what torch writes with; onnxruntime proves what it wrote.
        need("onnx", "onnxscript", "onnxruntime", purpose="export --format onnx")


def _graph(opened: Checkpoint, path: Path, arguments: ExportOptions) -> Export:
    """One graph in one file."""
    if arguments.aot:
        from hydrasurgeon.sharing.pt2 import check_compiler

        check_compiler()
    trial: Trial | None = None
    if arguments.check is not None:
        from hydrasurgeon.sharing.trial import opened_trial

        trial = opened_trial(opened.manifest.model, check=arguments.check, ood=arguments.ood, limit=arguments.limit)
    from hydrasurgeon.runtime.classifier import as_classifier

    model = as_classifier(opened, device="cpu")
    quantised: Compared | None = None
    checked: Compared | None = None
    opset: int | None = None
    if arguments.format == "pt2":
        from hydrasurgeon.sharing.pt2 import to_pt2

        made: Exported = to_pt2(model, aot=arguments.aot)
    else:
        from hydrasurgeon.sharing.onnx import OPSET, to_onnx

        made, opset = to_onnx(model), OPSET
    if trial is not None and arguments.int8:
        from hydrasurgeon.sharing.quantised import in_int8

        made, quantised = in_int8(made, model, trial, tolerance=arguments.tolerance)
    elif trial is not None:
        checked = _checked(made, model, trial, arguments)
    write_bytes(path, made.content)
    return Export(
        path,
        len(made.content),
        made.inputs,
        made.outputs,
        made.max_difference,
        opset,
        arguments.format,
        quantised=quantised,
        checked=checked,
        notes=() if trial is None or trial.samples.note is None else (trial.samples.note,),
    )


def _checked(made: Exported, model: Classifier, trial: Trial, arguments: ExportOptions) -> Compared:
    """The file's answers on the user's data beside the model's, before it is written."""
    from hydrasurgeon.sharing.trial import checked, in_onnxruntime

    if arguments.format == "onnx":
        run = in_onnxruntime(made.content, made.outputs)
        return checked(model, trial, run, tolerance=arguments.tolerance)
    from hydrasurgeon.sharing.pt2 import in_a_program

    if not arguments.aot:
        return checked(model, trial, in_a_program(made), tolerance=arguments.tolerance)
    with tempfile.TemporaryDirectory() as folder:
        run = in_a_program(made, Path(folder) / "model.pt2")
        return checked(model, trial, run, tolerance=arguments.tolerance)


def _in_steps(opened: Checkpoint, arguments: ExportOptions, inputs: Sequence[object]) -> Export:
    """A cascade, as two graphs side by side."""
    decision = opened.manifest.decision
    if decision is None or decision.cascade is None:
        raise CheckpointError(
            f"{opened.name}: has no cascade in a decision state",
            hint="Run `hydrasurgeon calibrate --cascade` on the hydra first.",
        )
    out = Path(arguments.out or opened.home.with_name(f"{opened.home.stem}.onnx"))
    first, rest = (real(out.with_suffix(f".{step}.onnx")) for step in ("first", "rest"))
    claim(first, rest, option="-o", force=arguments.force, inputs=inputs)
    opened.verify_hash()
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing.cascade_onnx import two_graphs
    from hydrasurgeon.sharing.onnx import OPSET

    made = two_graphs(as_classifier(opened, device="cpu"))
    with replacing(first, rest) as parts:
        for part, content in zip(parts, (made.first, made.rest), strict=True):
            fill(part, content)
    nbytes = len(made.first) + len(made.rest)
    return Export(first, nbytes, made.inputs, made.outputs, made.max_difference, OPSET, beside=rest)


def _padded(opened: Checkpoint, arguments: ExportOptions, inputs: Sequence[object]) -> Export:
    """All heads again, those that are gone as zeros."""
    from hydrasurgeon.options.shared import Output
    from hydrasurgeon.sharing.output import claimed

    out = arguments.out or f"{opened.home.with_name(f'{opened.home.stem}-padded')}/"
    target = claimed(Output(force=arguments.force), out, inputs=inputs, repository=None)
    opened.verify_hash()
    from hydrasurgeon.sharing.padded import padded

    model = padded(opened, arguments.member)
    target.save(model.planned, model.manifest, files=opened.files)
    nbytes = sum(plan.nbytes for plan in model.planned)
    return Export(target.path, nbytes, (), (), model.max_difference, None, "padded")
