"""The format `stock`: the calibrated model as its own library has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.checkpoints.class_names import need_classes
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.sharing.base import Export, Format, uncalibrated, without_words

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import ExportOptions


class StockFormat(Format):
    name = "stock"
    help = "a folder that the model's own library loads without hydrasurgeon"

    def write(self, opened: Checkpoint, arguments: ExportOptions) -> Export:
        out = arguments.out or f"{opened.home.with_name(f'{opened.home.stem}-stock')}/"
        path = claim_checkpoint(out, force=arguments.force, inputs=arguments.sources)
        if path.suffix == SUFFIX:
            raise UsageError(f"-o {out}: --format stock writes a directory", hint="Give -o DIR/.")
        need_classes(opened.manifest, opened.path)
        opened.check_weights()
        from hydrasurgeon.sharing.stock import difference_when_folded, folded

        notes = uncalibrated(opened)
        opened, left = without_words(opened)
        model = folded(opened)
        difference = difference_when_folded(opened)
        save(path, model.planned, model.manifest, files=opened.files, more=model.more)
        return Export(
            path,
            sum(plan.nbytes for plan in model.planned),
            (),
            (),
            difference,
            format=self.name,
            calibrated=model.calibrated,
            notes=notes + left,
        )
