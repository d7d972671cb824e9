"""Options of `calibrate` without a checkpoint: what a decision state is to keep."""

from typing import Any

from hydrasurgeon.options.deciding import CalibrateOptions


def promise(**options: Any) -> CalibrateOptions:
    return CalibrateOptions.of("model", data="val", out="out", **options)
