"""History of a manifest: the steps that made a checkpoint, and their command lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydrasurgeon.files.manifest import DataRecord, Input, Step
from hydrasurgeon.files.untrusted import unrooted

# What is printed before the options, not as one.
POSITIONAL = ("checkpoint",)


def step(
    command: str,
    *,
    args: Mapping[str, Any],
    inputs: Sequence[Input],
    data: Sequence[DataRecord] = (),
    teachers: Sequence[Input] = (),
    seed: int | None = None,
    uses: Sequence[str] = (),
) -> Step:
    """Return a history entry. Arguments that were not given are left out; paths are cut to names, of
    options that may hold anything else only absolute ones.
    """
    return Step(
        command=command,
        args={
            key: _portable(value)
            for key, value in args.items()
            if value is not None and value is not False
        },
        inputs=tuple(inputs),
        data=tuple(data),
        teachers=tuple(teachers),
        seed=seed,
        versions={
            name: version
            for name in ("hydrasurgeon", "numpy", *uses)
            if (version := installed(name))
        },
    )


def command_line(entry: Step) -> list[str]:
    """Return the words of a step's command line."""
    names = [f"./{i.name}" if i.name.startswith("-") else i.name for i in entry.inputs]
    words = [
        entry.command,
        *names,
        *(str(entry.args[key]) for key in POSITIONAL if key in entry.args),
    ]
    for key, value in entry.args.items():
        if key not in POSITIONAL:
            words += typed(f"--{key.replace('_', '-')}", value)
    return [*words, *(["--seed", str(entry.seed)] if entry.seed else [])]


def typed(name: str, value: Any) -> list[str]:
    """Return an option as it is typed: a flag alone, several values and KEY=VALUE pairs one by one."""
    if value is None or value is False:
        return []
    if value is True:
        return [name]
    if isinstance(value, Mapping):
        value = [f"{key}={entry}" for key, entry in value.items()]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for entry in values for word in (name, str(entry))]


def merged(histories: Iterable[Sequence[Step]]) -> list[Step]:
    """Join histories, with the steps that they share only once."""
    steps: list[Step] = []
    for history in histories:
        steps += [entry for entry in history if entry not in steps]
    return steps


def _portable(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, str):
        return unrooted(value)
    if isinstance(value, list):
        return [_portable(entry) for entry in value]
    return value


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
