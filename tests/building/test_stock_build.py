"""`build --stock` makes what the models' own library builds, and says what that costs."""

from __future__ import annotations

from pathlib import Path

from tiny_families import FAMILIES

from hydrasurgeon.building.cost import Size, Sizes, parse_budgets
from hydrasurgeon.checkpoints.reading import as_single, open_checkpoint
from hydrasurgeon.options.shared import Run


def test_only_such_sizes_fill_a_budget(tmp_path: Path) -> None:
    family = FAMILIES["DINOv2"]
    family.write(tmp_path / "source")
    opened = as_single(open_checkpoint(tmp_path / "source"))
    sizes = Sizes(opened, family.inputs(rows=1), Run(device="cpu"), stock=True)
    (budget,) = parse_budgets("macs=0.6")
    found = sizes.filling(budget)
    assert found is not None
    assert found.neurons * 4 == int(found.neurons * 4)  # its ratio is a whole number
    assert sizes.is_offered(Size(2, 0.5))
    assert not sizes.is_offered(Size(2, 0.4))
