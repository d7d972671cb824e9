"""A command opens each data set once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hydrasurgeon as hs
from hydrasurgeon.data import sources


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The specs that were opened."""
    specs: list[str] = []
    original = sources.open_data

    def counted(spec: str, **options: Any) -> Any:
        specs.append(Path(spec).name)
        return original(spec, **options)

    monkeypatch.setattr(sources, "open_data", counted)
    return specs


def test_prune_and_score(
    tiny: Callable[..., Path], images: Callable[..., str], tmp_path: Path, opened: list[str]
) -> None:
    vit, data = tiny(), images()
    how = {"method": "taylor", "data": data, "device": "cpu"}
    out = tmp_path / "m.safetensors"
    hs.prune(vit, keep=2, compensate="lstsq", out=out, **how)
    assert opened == ["data.npz"]
    opened.clear()
    hs.score(vit, **how)
    assert opened == ["data.npz"]
