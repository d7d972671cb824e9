"""Libraries that measures are held against, imported by the test that asks: some import all of training."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


class Reference:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self.name), attribute)


torch_uncertainty = Reference("torch_uncertainty.metrics")
torchmetrics = Reference("torchmetrics.functional.classification")
relplot = Reference("relplot")
pytorch_ood = Reference("pytorch_ood.detector")
