"""`build --stock` makes what the models' own library builds, and says what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_families import FAMILIES, HEADS
from tiny_task import Task

from hydrasurgeon.building.cost import Size, Sizes, parse_budgets
from hydrasurgeon.checkpoints.reading import as_single, open_checkpoint
from hydrasurgeon.options.shared import Run
from hydrasurgeon.stages.export import export


@pytest.mark.slow
def test_one_model_of_a_size_that_its_library_builds(tmp_path: Path) -> None:
    task = Task(tmp_path)
    done = task.build("ready", budget="macs=0.7", stock=True)
    assert done.path is not None
    opened = open_checkpoint(done.path)
    assert opened.manifest.kind == "member"
    assert {len(row) for row in opened.manifest.kept["vision"]} == {HEADS}
    assert opened.manifest.kept_neurons is not None
    assert len({len(row) for row in opened.manifest.kept_neurons["vision"]}) == 1
    assert done.front[-1].cost["macs"] <= 0.7
    stock = export(done.path, format="stock", out=f"{tmp_path / 'stock'}/")
    assert stock.max_difference < 1e-5


def test_only_such_sizes_fill_a_budget(tmp_path: Path) -> None:
    family = FAMILIES["DINOv2"]
    family.write(tmp_path / "source")
    opened = as_single(open_checkpoint(tmp_path / "source"))
    sizes = Sizes(opened, family.inputs(rows=1), Run(device="cpu"))
    (budget,) = parse_budgets("macs=0.6")
    found = sizes.filling(budget, stock=True)
    assert found is not None
    assert found.neurons * 4 == int(found.neurons * 4)  # its ratio is a whole number
    assert sizes.is_offered(Size(2, 0.5))
    assert not sizes.is_offered(Size(2, 0.4))
