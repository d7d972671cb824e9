"""Maps of heads: cells as large in every tower, and a scale that fits one number."""

from __future__ import annotations

import pytest

from hydrasurgeon.files.headmaps import HeadMap, put_head_maps

pytest.importorskip("matplotlib", reason="matplotlib draws the maps")


def test_a_short_tower_beside_a_tall_one() -> None:
    from hydrasurgeon.files.plots import figure

    values = {"vision": [[0.1] * 4] * 24, "text": [[0.3] * 2] * 2}
    drawn = figure()
    put_head_maps(drawn, [HeadMap("taylor", values)])
    tall, short, _scale = drawn.axes
    # Two layers are not as high as twenty-four.
    assert tall.get_ylim() == short.get_ylim() == (23.5, -0.5)
    assert len(tall.get_yticks()) == 24
    assert list(short.get_yticks()) == [0, 1]
    assert short.xaxis.get_label_position() == "top"


@pytest.mark.parametrize("value", [0.02, -3.0, 0.0])
def test_one_number_stands_within_its_scale(value: float) -> None:
    from hydrasurgeon.files.plots import figure

    drawn = figure()
    put_head_maps(drawn, [HeadMap("taylor", {"vision": [[value]]})])
    low, high = drawn.axes[0].images[0].get_clim()
    assert (low + high) / 2 == pytest.approx(value)
    assert high - low == pytest.approx(abs(value) / 5 or 2.0)
