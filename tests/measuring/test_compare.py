"""compare against sets and distributions written out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, SurgeryError, UsageError
from hydrasurgeon.stages.compare import compare, divergence

MAKE = Callable[..., Path]
A = {"vision": [[0, 1, 2], [], [0, 1, 2, 3]]}
B = {"vision": [[1, 2, 3], [2], [0, 1, 2, 3]]}


def member(path: Path, kept: object, out: Path) -> Path:
    mask = out.with_suffix(".json")
    mask.write_text(json.dumps(kept))
    hs.prune(path, mask=mask, out=out)
    return out


@pytest.fixture
def pair(tiny: MAKE, tmp_path: Path) -> tuple[Path, Path]:
    whole = tiny()
    return member(whole, A, tmp_path / "a.safetensors"), member(
        whole, B, tmp_path / "b.safetensors"
    )


def written_out(a: set[int], b: set[int], size: int) -> float:
    """½ KL(p‖m) + ½ KL(q‖m) over all heads, as vectors."""
    p, q = (np.isin(np.arange(size), list(s)) / len(s) for s in (a, b))
    m = (p + q) / 2

    def kl(x: np.ndarray) -> float:
        return float(sum(v * math.log(v / w) for v, w in zip(x, m, strict=True) if v > 0))

    return (kl(p) + kl(q)) / 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({0, 1, 2}, {2, 3}),
        ({0}, {0}),
        ({0, 1}, {2, 3, 4}),
        ({0, 1, 2, 3}, {1}),
        ({5}, set(range(9))),
    ],
)
def test_divergence_is_the_definition(a: set[int], b: set[int]) -> None:
    assert divergence(len(a), len(b), len(a & b)) == pytest.approx(written_out(a, b, 10), abs=1e-12)


def test_divergence_at_its_ends() -> None:
    assert divergence(4, 4, 4) == 0
    assert divergence(3, 5, 0) == pytest.approx(math.log(2))
    assert divergence(0, 5, 0) is None
    # The paper's pair of removals (B.2): 22 of 48 heads in common are 29 % and 0.37, cut off after two digits.
    jaccard = 22 / (48 + 48 - 22)
    assert jaccard == pytest.approx(0.297, abs=1e-3)
    assert divergence(48, 48, 22) == pytest.approx(0.375, abs=1e-3)


def test_ragged_and_empty_layers(pair: tuple[Path, Path]) -> None:
    found = compare(*pair)
    first, second, third = found.layers["vision"]
    assert (first["kept"].common, first["kept"].jaccard) == (2, 0.5)
    assert first["kept"].share == pytest.approx(4 / 6)
    assert (first["removed"].a, first["removed"].b, first["removed"].jaccard) == (1, 1, 0.0)
    assert (second["kept"].a, second["kept"].b, second["kept"].jaccard) == (0, 1, 0.0)
    assert second["kept"].jsd is None
    assert second["removed"].jaccard == 3 / 4
    assert (third["kept"].jaccard, third["removed"].jaccard) == (1.0, None)
    # In all: A keeps 7, B keeps 8, six in common.
    assert (found.kept.a, found.kept.b, found.kept.common) == (7, 8, 6)
    assert found.kept.jaccard == 6 / 9
    heads_a = {4 * la + h for la, row in enumerate(A["vision"]) for h in row}
    heads_b = {4 * la + h for la, row in enumerate(B["vision"]) for h in row}
    everything = set(range(12))
    assert found.kept.jsd == pytest.approx(written_out(heads_a, heads_b, 12))
    assert found.removed.jsd == pytest.approx(
        written_out(everything - heads_a, everything - heads_b, 12)
    )


def test_members_and_manifests(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    hs.fuse([a, b], out=tmp_path / "h.safetensors")
    direct = compare(a, b)
    inside = compare(f"{tmp_path}/h#0", f"{tmp_path}/h.safetensors#1")
    assert inside.names == ("h#0", "h.safetensors#1")
    assert inside.kept == direct.kept
    alone = compare(tmp_path / "a.heads.json", f"{tmp_path}/h.heads.json#1")
    assert alone.layers == direct.layers
    with pytest.raises(UsageError, match="which member") as caught:
        compare(tmp_path / "h.safetensors", a)
    assert "#0 to" in str(caught.value.hint)
    with pytest.raises(UsageError, match="which member"):
        compare(f"{tmp_path}/h#2", a)
    with pytest.raises(UsageError, match="not a hydra"):
        compare(f"{a}#0", b)
    with pytest.raises(CheckpointError, match="no such manifest"):
        compare(a, tmp_path / "none.json")


def test_different_architectures(tiny: MAKE, bare: MAKE) -> None:
    first, second = tiny(), bare("other.safetensors", num_classes=5)
    with pytest.raises(SurgeryError, match="3×4 heads of 8"):
        compare(first, second)
    with pytest.raises(SurgeryError, match="cannot be compared"):
        compare(second, bare("small.safetensors", arch="vit_small_patch16_224", num_classes=5))


def test_on_the_command_line(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (str(p) for p in pair)
    assert run(["inspect", a, b]) == 0
    out = capsys.readouterr().out
    assert "A■■B" in out
    assert "··B·" in out
    assert run(["inspect", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "hydrasurgeon.compare/1"
    assert found["layers"]["vision"][2]["removed"]["jaccard"] is None
    assert found["kept"]["common"] == 6
    assert run(["inspect", a, "nothing"]) == 3
