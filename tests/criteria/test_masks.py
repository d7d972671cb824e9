"""--mask: numbers of heads or booleans, refused where they are neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.criteria.selection import kept_from_file
from hydrasurgeon.errors import HydraError, SurgeryError, UsageError
from hydrasurgeon.files.manifest import Model, SingleManifest, Tower

MANIFEST = SingleManifest(
    kind="member",
    model=Model(family="timm", arch="vit_tiny_patch16_224", num_classes=2),
    towers={"vision": Tower(layers=2, heads=3, head_dim=4, dim=12)},
    kept={"vision": ((0, 1, 2), (0, 2))},
    weights_sha256="0" * 64,
)


def read(folder: Path, content: str) -> object:
    (folder / "m.json").write_text(content)
    return kept_from_file(folder / "m.json", MANIFEST)


@pytest.mark.parametrize(
    "content",
    [
        "[[0], [2]]",
        '{"vision": [[0], [2]]}',
        '{"kept": {"vision": [[0], [2]]}}',
        '{"mask": [[true, false, false], [false, false, true]]}',
    ],
)
def test_masks_that_are_read(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content) == {"vision": ((0,), (2,))}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[[0], [true]]", UsageError),
        ("[[0], [2.0]]", UsageError),
        ('[[0], ["2"]]', UsageError),
        ("[[0], [[2]]]", UsageError),
        ("[[0], [null]]", UsageError),
        ("[[0], [1]]", SurgeryError),
        ("[[0], [-1]]", SurgeryError),
        ("[[], []]", SurgeryError),
        ("[[0], [1e400]]", UsageError),
        ("[[0], [" + "1" * 5000 + "]]", UsageError),
        ("[" * 100_000, UsageError),
        ('{"kept":' * 5000 + "1" + "}" * 5000, UsageError),
        ('{"vision": [[0], [2]], "vision": [[0], [0]]}', UsageError),
        ("", UsageError),
    ],
)
def test_masks_that_are_refused(tmp_path: Path, content: str, error: type[HydraError]) -> None:
    with pytest.raises(error, match=r"m\.json") as refused:
        read(tmp_path, content)
    assert len(refused.value.message) < 300 + len(str(tmp_path))


def test_a_mask_is_a_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(UsageError):
            kept_from_file(path, MANIFEST)
