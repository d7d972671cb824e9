"""What a replay needs besides weights: data, recipes and masks, found in a folder by name, or data by its content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

from hydrasurgeon.checkpoints.checks import short
from hydrasurgeon.checkpoints.folder import present
from hydrasurgeon.errors import DataError, HydraError, ManifestError
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.files.recorded import (
    CalibrateOptions,
    FinetuneOptions,
    NamedOptions,
    PruneOptions,
    RunOptions,
    StepOptions,
)
from hydrasurgeon.stages.replay_plan import Plan, Rerun

Options = TypeVar("Options", bound=StepOptions)

FETCHED = ("hf:", "torchvision:")
"""Data that a library fetches."""
PATTERN = "*?[{"
"""Several files in one name: shards of image–text pairs."""


def with_files(run: Rerun, folder: Path, *, fetch: bool) -> StepOptions:
    """The step's options with names of files that can be opened from `folder`; DataError for what is not there."""
    options = run.options

    def data(spec: str) -> str:
        if spec.startswith(FETCHED) and not fetch:
            raise DataError(
                f"--data {spec}: is not in {folder}, and nothing is fetched because a file says so",
                hint="Give --fetch if you want what the history names.",
            )
        return _data(spec, run, folder)

    if isinstance(options, NamedOptions):
        _check_names(options, folder)
    if not isinstance(options, RunOptions):
        return options
    changes: dict[str, object] = {}
    if options.data is not None:
        changes["data"] = data(options.data)
    if isinstance(options, CalibrateOptions) and options.fit_data is not None:
        changes["fit_data"] = data(options.fit_data)
    if isinstance(options, FinetuneOptions):
        if options.val is not None:
            changes["val"] = data(options.val)
        if options.recipe.endswith(".toml"):
            changes["recipe"] = _file(options.recipe, "recipe", folder)
    elif getattr(options, "ood", None):
        changes["ood"] = [data(spec) for spec in options.ood]  # type: ignore[attr-defined]
    if isinstance(options, PruneOptions) and options.mask is not None:
        changes["mask"] = _mask(options.mask, folder)
    return options.model_copy(update=changes)


def _check_names(options: NamedOptions, folder: Path) -> None:
    """Class names and templates may be files, but of this folder: what others hold would be in what the step writes."""
    for text in (options.classes or "", *options.template):
        path = folder / text
        if os.path.lexists(path) and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
            raise ManifestError(
                f"{text}: a history names this file, which is not in {folder}",
                hint="Only class names and templates in the folder of the replay are read.",
            )


def _data(spec: str, run: Rerun, folder: Path) -> str:
    """A data spec as it can be opened: as it was recorded where that works, else by file name, else by content."""
    if spec.startswith((*FETCHED, "demo:")):
        return spec
    if any(character in spec for character in PATTERN) and _is_below(Path(spec)):
        return spec
    file, at, root = spec.partition("@")
    path = _inside(file, folder)
    if path is None:
        record = next((r for r in run.entry.data if r.spec in (spec, Path(spec).name)), None)
        path = None if record is None else _by_content(record, run, folder)
    if path is None:
        raise DataError(
            f"--data {spec}: is not in {folder}{_as_recorded(spec, run)}", hint="Put it there under this name."
        )
    return path + (at + (_inside(root, folder) or root) if at else "")


def _as_recorded(spec: str, run: Rerun) -> str:
    for record in run.entry.data:
        if record.spec == spec:
            return f" ({record.rows} rows, sha256 {short(record.sha256)})"
    return ""


def _inside(name: str, folder: Path) -> str | None:
    """How to call a file of the folder that is its current one: as recorded if it lies there, else by its name."""
    path = Path(name)
    if _is_below(path) and present(folder / path):
        return name
    plain = path.name not in ("", "..") and present(folder / path.name)
    return str(folder.resolve() / path.name) if plain else None


def _is_below(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _by_content(record: DataRecord, run: Rerun, folder: Path) -> str | None:
    """The file of the folder whose samples hash to what was recorded."""
    from hydrasurgeon.data import open_data

    options = run.options
    assert isinstance(options, RunOptions)
    suffix = Path(record.spec).suffix
    for path in sorted(folder.iterdir()):
        if path.suffix != suffix or path.is_dir() != (suffix == ""):
            continue
        try:
            samples = open_data(str(path), limit=options.limit, seed=run.entry.seed or 0)
        except HydraError:  # some other file
            continue
        if samples.fingerprint()["sha256"] == record.sha256:
            return str(path.resolve())
    return None


def _file(name: str, what: str, folder: Path) -> str:
    path = _inside(name, folder)
    if path is None:
        raise DataError(f"--{what} {name}: is not in {folder}", hint="Put it there under this name.")
    return path


def _mask(name: str, folder: Path) -> str:
    """The mask's file, or its bare name where there is none: then the heads of later files tell it."""
    return _inside(name, folder) or Path(name).name


def derived_mask(plan: Plan, run: Rerun, folder: Path) -> str | None:
    """For a mask that is not at hand: the heads that the file it made kept, as a mask; None where it is."""
    options = run.options
    if not isinstance(options, PruneOptions) or options.mask is None:
        return None
    if _inside(options.mask, folder) is not None:
        return None
    kept = plan.kept_of(run.output)
    if kept is None:
        raise DataError(
            f"--mask {options.mask}: is not in {folder}, and no later file tells the heads it kept",
            hint="Put it there under this name.",
        )
    return json.dumps({"kept": kept})
