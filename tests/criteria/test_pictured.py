"""Heat maps of scores: the numbers that are drawn are those of the manifest, and the dots are the heads that stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.criteria.pictured import head_map, head_maps
from hydrasurgeon.errors import MissingDependency, OutputError, UsageError
from hydrasurgeon.files.headmaps import HeadMap, in_rows, put_head_maps, row_inches
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.files.plots import figure
from hydrasurgeon.stages.inspect import inspect

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


def drawn(maps: list[HeadMap]) -> list[Any]:
    """The axes that hold a map."""
    page = figure()
    put_head_maps(page, maps)
    return [axes for axes in page.axes if axes.images]


def dots(axes: Any) -> set[tuple[int, int]]:
    return {(int(y), int(x)) for each in axes.collections for x, y in each.get_offsets() if len(each.get_offsets())}


def test_what_is_drawn(tiny: MAKE) -> None:
    score = hs.score(tiny(), method="magnitude").result
    manifest = open_checkpoint(tiny("b.safetensors")).manifest
    kept = {"vision": ((0, 2), (), (1,))}
    (axes,) = drawn([head_map("magnitude", score, manifest.towers, manifest.kept, kept)])
    assert axes.get_xlabel() == "head (○ kept)"
    assert np.allclose(axes.images[0].get_array(), score.values["vision"])
    assert dots(axes) == {(0, 0), (0, 2), (2, 1)}
    assert axes.get_title() == "magnitude: vision"


def test_an_order_by_the_place_in_it(tiny: MAKE) -> None:
    manifest = open_checkpoint(tiny()).manifest
    order = Score(order=(("vision", 2, 3), ("vision", 0, 1)), trace=(0.5, 0.4))
    each = head_map("circuit-acc", order, manifest.towers, manifest.kept, None)
    expected = np.full((3, 4), 3.0)
    expected[2, 3], expected[0, 1] = 1, 2
    assert np.array_equal(np.array(each.values["vision"]), expected)
    gone = {"vision": ((0, 2, 3), (0,), (0, 1, 2, 3))}
    grey = head_map("circuit-acc", order, manifest.towers, gone, gone)
    assert grey.values["vision"][1] == [3.0, None, None, None]
    (axes,) = drawn([grey])
    assert np.ma.getmaskarray(np.ma.masked_invalid(axes.images[0].get_array())).sum() == 3


def test_towers_stand_side_by_side_and_share_a_scale(tmp_path: Path) -> None:
    family = FAMILIES["OpenCLIP"]
    family.write(tmp_path / "clip")
    scored = hs.score(tmp_path / "clip", method="magnitude", plot=tmp_path / "c.png", keep=2)
    vision, text = drawn(head_maps(scored.manifest, "clip"))[-2:]
    assert (vision.get_title(), text.get_title()) == ("magnitude: vision", "magnitude: text")
    assert vision.images[0].get_clim() == text.images[0].get_clim()
    values = scored.result.values
    everything = [v for rows in values.values() for row in rows for v in row]
    assert vision.images[0].get_clim() == (min(everything), max(everything))
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    one_tower = Score(values={"text": values["text"]})
    (alone,) = drawn([head_map("x", one_tower, scored.manifest.towers, scored.manifest.kept, None)])
    assert alone.get_title() == "x: text"


def test_score_marks_what_would_stay(tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an amount; the same heads that `prune` then keeps."""
    seen: list[HeadMap] = []
    monkeypatch.setattr("hydrasurgeon.files.headmaps.draw_head_maps", lambda maps, path: seen.extend(maps))
    path, spec = tiny(), images()
    hs.score(path, method="taylor", data=spec, keep=2, plot=tmp_path / "a.png")
    hs.score(path, method="taylor", data=spec, plot=tmp_path / "b.png")
    member = hs.prune(path, method="taylor", keep=2, data=spec)
    hs.score(member.path, method="random", plot=tmp_path / "c.png")
    assert seen[0].kept == member.manifest.kept
    assert seen[1].kept is None
    assert seen[2].kept == member.manifest.kept


def test_inspect_draws_all_that_is_recorded(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    with pytest.raises(UsageError, match="records no scores"):
        inspect(path, plot=tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()
    hs.score(path, method="magnitude")
    hs.score(path, method="random")
    member = hs.prune(path, method="random", keep=2, out=tmp_path / "m.safetensors")
    maps = head_maps(member.manifest, "m")
    assert [each.title for each in maps] == ["magnitude", "random"]
    assert all(each.kept == member.manifest.kept for each in maps)
    assert [each.kept for each in head_maps(open_checkpoint(path).manifest, "v")] == [None, None]
    inspect(member.path, plot=tmp_path / "a.svg")
    first = (tmp_path / "a.svg").read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        inspect(member.path, plot=tmp_path / "a.svg")
    inspect(member.path, plot=tmp_path / "a.svg", force=True)
    assert (tmp_path / "a.svg").read_bytes() == first


def test_a_hydra_shows_how_many_keep_each_head(tiny: MAKE, tmp_path: Path) -> None:
    path = tiny()
    members = [hs.prune(path, method="random", keep=2, seed=s, out=tmp_path / f"{s}.safetensors") for s in (0, 1)]
    hydra = hs.fuse([m.path for m in members], out=tmp_path / "h.safetensors")
    (each,) = head_maps(hydra.manifest, "h")
    for layer, row in enumerate(each.values["vision"]):
        assert row == [sum(h in m.manifest.kept["vision"][layer] for m in members) for h in range(4)]
    inspect(hydra.path, plot=tmp_path / "h.png")
    assert (tmp_path / "h.png").is_file()


def test_a_hundred_layers_fit(tmp_path: Path) -> None:
    from hydrasurgeon.files.headmaps import draw_head_maps

    tall = HeadMap("many", {"vision": [[float(h) for h in range(40)] for _ in range(100)]}, centred=True)
    draw_head_maps([tall, HeadMap("flat", {"vision": [[0.0, 0.0]]})], tmp_path / "t.png")
    from PIL import Image

    with Image.open(tmp_path / "t.png") as image:
        assert max(image.size) <= 24 * 150 + 2


def test_without_matplotlib(tiny: MAKE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydrasurgeon import lookup

    find = lookup.find_spec
    monkeypatch.setattr(lookup, "find_spec", lambda n: None if n == "matplotlib" else find(n))
    with pytest.raises(MissingDependency, match="matplotlib"):
        hs.score(tiny(), method="random", plot=tmp_path / "x.png")


def test_maps_fill_the_rows() -> None:
    """As few rows as there is room for, and those about as wide: towers that only some maps have leave no holes."""

    def of(name: str, **heads: int) -> HeadMap:
        return HeadMap(name, {tower: [[0.0] * count] * 12 for tower, count in heads.items()})

    both, some = of("both", vision=12, text=8), [of(str(number), vision=12) for number in range(4)]
    wanted = {
        0: [["both"]],
        1: [["both", "0"]],
        2: [["both", "0", "1"]],
        3: [["both", "0"], ["1", "2"]],
        4: [["both", "0"], ["1", "2", "3"]],
    }
    for count, names in wanted.items():
        rows = in_rows([both, *some[:count]])
        assert [[each.title for each in row] for row in rows] == names
        assert all(row_inches(row)[0] <= 18 for row in rows)
    wide = of("wide", vision=80, text=80)
    assert len(in_rows([wide, wide])) == 2
    assert row_inches([both, some[0]]) == pytest.approx(
        (12 * 0.3 + 1.1 + 8 * 0.3 + 1.1 + 12 * 0.3 + 1.1, 12 * 0.3 + 1.1)
    )
