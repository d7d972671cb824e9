"""What a stage writes into a manifest's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydrasurgeon.files.manifest import DataRecord, Input, Step

__all__ = ["step"]


def step(
    command: str,
    *,
    args: Mapping[str, Any],
    inputs: Sequence[Input],
    data: Sequence[DataRecord] = (),
    seed: int | None = None,
    uses: Sequence[str] = (),
) -> Step:
    """One history entry; arguments that were not given are left out, paths are cut to names."""
    return Step(
        command=command,
        args={
            key: _portable(value)
            for key, value in args.items()
            if value is not None and value is not False
        },
        inputs=tuple(inputs),
        data=tuple(data),
        seed=seed,
        versions={
            name: found for name in ("hydrasurgeon", "numpy", *uses) if (found := _version(name))
        },
    )


def _portable(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    if isinstance(value, list):
        return [_portable(each) for each in value]
    return value


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
