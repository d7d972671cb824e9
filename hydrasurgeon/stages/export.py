"""export: a pruned model or a hydra for runtimes without Python; the file is kept only if it gives the same outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.class_names import with_class_names
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.files.atomic import output_file, write_bytes
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.lookup import need

__all__ = ["Export", "export"]

FORMATS = ("onnx",)
"""What `--format` can be."""


@dataclass(frozen=True)
class Export:
    path: Path
    nbytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output from torch's."""
    opset: int
    """The version of ONNX's operators."""


@releases_claims
def export(
    checkpoint: str | Path,
    *,
    format: str = "onnx",
    out: str | Path | None = None,
    arch: str | None = None,
    classes: str | None = None,
    template: Sequence[str] = (),
    force: bool = False,
) -> Export:
    """Write the checkpoint as ONNX with a dynamic batch; outputs are logits [batch, member, class] and probs.

    With a decision state they are logits, probabilities, uncertainty, ood_score and unfamiliar.
    """
    if format not in FORMATS:
        raise UsageError(f"--format {format}: not known", hint=f"Use {', '.join(FORMATS)}.")
    # onnx is what torch writes with; onnxruntime proves what it wrote.
    need("onnx", "onnxruntime", purpose="export --format onnx")
    opened = with_class_names(
        open_checkpoint(checkpoint, arch=arch), classes=classes, templates=template
    )
    target = Path(out) if out is not None else opened.home.with_name(f"{opened.home.stem}.onnx")
    target = output_file(target, option="-o", force=force, inputs=[checkpoint, classes, template])
    if not opened.manifest.model.num_classes:
        raise SurgeryError(
            f"{opened.name}: has no classifier", hint="Finetune it first, or give CLIP --classes."
        )
    from hydrasurgeon.runtime.classifier import as_classifier
    from hydrasurgeon.sharing.onnx import OPSET, to_onnx

    opened.digests()
    made = to_onnx(as_classifier(opened, device="cpu"))
    write_bytes(target, made.content)
    return Export(target, len(made.content), made.inputs, made.outputs, made.max_difference, OPSET)
