"""Write checkpoints, and the small files beside them: each whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from hydrasurgeon.checkpoints.card import CARD, OUR_TAG, model_card
from hydrasurgeon.checkpoints.folder import GRAPH, GRAPHS, GRAPHS_INT8, THRESHOLDS, check_names
from hydrasurgeon.errors import CheckpointError, OutputError
from hydrasurgeon.families import families, family_of, weight_names
from hydrasurgeon.files.atomic import (
    SUFFIX,
    fill,
    hold,
    output_path,
    real,
    replacing,
    staged,
    sweep,
    write_text,
)
from hydrasurgeon.files.decided import BESIDE, PREFIX
from hydrasurgeon.files.manifest import (
    FILES_KEY,
    HEADER_KEY,
    MAX_BYTES,
    UNKNOWN,
    Manifest,
    ManifestT,
    sidecar,
)
from hydrasurgeon.files.tensors import Entry, Planned, TensorFile, Tensors, write_tensors
from hydrasurgeon.files.untrusted import read_json


def claim_checkpoint(out: str | Path, *, force: bool, inputs: Iterable[object] = ()) -> Path:
    """Return `-o` as a path that this command may write.

    A folder is replaced only if all of its files are ours.
    """
    path = output_path(out, force=force, inputs=inputs)
    other_files = _other_files(path) if path.is_dir() else []
    if other_files:
        names = ", ".join(other_files[:5]) + (", …" if len(other_files) > 5 else "")
        raise OutputError(
            f"{path}: contains files that hydrasurgeon did not write ({names})",
            hint="A folder is replaced as a whole: move it away, or give another -o.",
        )
    return path


def claim_in_place(path: Path) -> None:
    """Keep others from writing a checkpoint that is to get another manifest."""
    place = real(path)
    hold(place, option="score")
    _sweep_within(place) if place.is_dir() else sweep(place, sidecar(place))


def _sweep_within(folder: Path) -> None:
    for name in {*os.listdir(folder)} & {*weight_names(), BESIDE}:
        sweep(folder / name, folder / "heads.json")


def _other_files(folder: Path) -> list[str]:
    """List the names in a folder that belong to no checkpoint of ours.

    Without such a checkpoint there, all names.
    """
    _sweep_within(folder)
    names = {entry.name for entry in folder.iterdir()}
    weights = names & weight_names()
    our_files = {*weights, BESIDE, "heads.json", THRESHOLDS}
    for family in families():
        our_files |= {*family.layout, *family.companions(names)}
    graphs = folder / GRAPHS
    if graphs.is_dir() and {*os.listdir(graphs)} <= {GRAPH, *GRAPHS_INT8}:
        our_files.add(GRAPHS)
    if CARD in names and OUR_TAG in (folder / CARD).read_text(encoding="utf-8", errors="replace"):
        our_files.add(CARD)
    written = any(_is_ours(folder / name) for name in weights)
    if not weights:  # the graphs of `export` lie in a folder that holds none
        written = {CARD, GRAPHS} <= our_files
    return sorted(names - our_files if written else names)


def _is_ours(weights: Path) -> bool:
    """Return True if hydrasurgeon wrote the weight file."""
    with contextlib.suppress(CheckpointError):
        return HEADER_KEY in TensorFile(weights).metadata
    return False


def save(
    out: Path,
    planned: Sequence[Planned],
    manifest: Callable[[str], ManifestT],
    *,
    files: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> ManifestT:
    """Write weights and manifest, each whole or not at all; in a directory with
    `more` texts in place of or beside the usual ones.
    """
    if out.suffix == SUFFIX:
        with replacing(out, sidecar(out)) as (weights, beside):
            final = _write(weights, planned, manifest, files)
            fill(beside, final.to_json().encode())
        return final
    with staged(out) as folder:
        weights = folder / family_of(manifest(UNKNOWN).model).weight_files[0]
        # The tensors of a decision state have a file of their own.
        state = [plan for plan in planned if plan.name.startswith(PREFIX)]
        model = [plan for plan in planned if not plan.name.startswith(PREFIX)]
        state_entries = write_tensors(folder / BESIDE, state, lambda _: {}) if state else []
        final = _write(weights, model, manifest, elsewhere=state_entries)
        for name, text in {**texts_beside(final, files), **(more or {})}.items():
            fill(folder / name, text.encode())
    return final


def _write(
    weights: Path,
    planned: Sequence[Planned],
    manifest: Callable[[str], ManifestT],
    files: Mapping[str, str] | None = None,
    *,
    elsewhere: Sequence[Entry] = (),
) -> ManifestT:
    """Write a weight file that carries its manifest, and companions that do not lie beside it."""
    final: list[ManifestT] = []

    def metadata(sha256: str | None) -> dict[str, str]:
        final.append(cast(ManifestT, manifest(sha256 or UNKNOWN).sealed()))
        header = {HEADER_KEY: final[-1].to_header()}
        if files:
            check_names(files, family=family_of(final[-1].model), where="the companions")
            header[FILES_KEY] = json.dumps(files, sort_keys=True, separators=(",", ":"))
        return header

    write_tensors(weights, planned, metadata, elsewhere=elsewhere)
    return final[-1]


def record_in_place(path: Path, file: TensorFile, manifest: Manifest) -> Path:
    """Give the checkpoint at `path` another manifest, and return what was written; weights that
    carry none are never written to.
    """
    folder = path.is_dir()
    if HEADER_KEY not in file.metadata:
        beside = path / "heads.json" if folder else sidecar(path)
        write_text(beside if folder else real(beside), manifest.to_json())
        return beside
    # A link within a folder may lead into a cache of the hub's: it is replaced, what it leads to
    # stays.
    weights = file.path if folder else real(file.path)
    header = {**file.metadata, HEADER_KEY: manifest.to_header()}
    with replacing(weights, path / "heads.json" if folder else sidecar(weights)) as (part, text):
        write_tensors(part, Tensors([file]).planned(), lambda _: header)
        fill(text, manifest.to_json().encode())
    if folder:
        _record_names(path / "config.json", manifest)
    return path


def _record_names(place: Path, manifest: Manifest) -> None:
    """Let the family's own config tell the class names that the manifest has."""
    if not place.is_file():
        return
    config = read_json(place, most=MAX_BYTES)
    written = json.loads(family_of(manifest.model).directory(manifest)[place.name])
    names = {key: written[key] for key in ("id2label", "label2id", "label_names") if key in written}
    if any(config.get(key) != value for key, value in names.items()):
        with replacing(place) as (part,):
            fill(part, f"{json.dumps({**config, **names}, indent=2)}\n".encode())


def texts_beside(manifest: Manifest, files: Mapping[str, str] | None) -> dict[str, str]:
    """Return all texts that lie beside the weights in the family's own directory layout."""
    family = family_of(manifest.model)
    companions = dict(files or {})
    check_names(companions, family=family, where="the companions")
    card = model_card(manifest, family.usage(manifest))
    texts = {CARD: card, "heads.json": manifest.to_json(), **family.directory(manifest)}
    # On the family's list there is no name of ours but preprocessor_config.json, which the model
    # came with.
    return {**texts, **companions}
