"""Files of a checkpoint: a name becomes a path, a folder its config, weight files and companions."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.hub import MAX_CONFIG
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families import config_files, families, family_of_bare, schemes
from hydrasurgeon.families.base import WEIGHTS, BareCheckpoint, Family
from hydrasurgeon.files.decided import BESIDE, PREFIX
from hydrasurgeon.files.header import MAX_HEADER, MAX_TENSORS
from hydrasurgeon.files.tensors import TensorFile
from hydrasurgeon.files.untrusted import parse_json, read_json, read_text, visible
from hydrasurgeon.lookup import did_you_mean

PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
"""Endings of files that run code when they are read, and are never opened."""
PLAIN = re.compile(r"[^./\\:][^/\\:]{0,200}\.safetensors")
"""Pattern of the file names that an index may list."""
THRESHOLDS = "decision.json"
"""File with the thresholds of a model whose calibration is in its weights or its graph."""
GRAPHS, GRAPH = "onnx", "model.onnx"
"""Folder where clients look for graphs, and the graph that they prefer."""
GRAPHS_INT8 = ("model_quantized.onnx", "model_quint8_avx512_vnni.onnx")
"""Names of the graph in 8 bits: for transformers.js and optimum, and for sentence-transformers."""
INDEX = ".index.json"
"""Ending of the file that says which tensor lies in which of several files."""
MAX_INDEX = 32 << 20
"""Bytes of that file, which names every tensor once: enough for MAX_TENSORS with long names."""
# The largest tokenizer in use (256,000 words and their merges) has 35 MB.
MAX_TEXT = 64 << 20


@dataclass(frozen=True)
class Content:
    """The weight files of a checkpoint, and the config beside them with the family whose config it
    is.
    """

    files: list[TensorFile]
    family: Family | None = None
    config: dict[str, Any] | None = None


NAMED = re.compile(r"([\w-]+)=(.+)")
"""NAME=CKPT."""


def parts_of(text: str) -> tuple[str | None, list[str]]:
    """Split [NAME=]CKPT[+CKPT…] into its name and its checkpoints; a path that is there stays whole."""
    name, match = None, NAMED.fullmatch(text)
    if match is not None and not _is_there(text):
        name, text = match[1], match[2]
    return name, [text] if _is_there(text) else text.split("+")


def _is_there(text: str) -> bool:
    """Return True if the text is a path, or one with the suffix that may be left out."""
    return present(Path(text)) or present(Path(f"{text}.safetensors"))


def find(text: str) -> Path:
    """Return the path behind a name: unchanged, or with the suffix that may be left out."""
    path = Path(text)
    if text and path.name in ("", ".."):
        path = path.resolve()  # `.` has no name, and outputs are called by it
    if not text or not path.name:
        raise CheckpointError(
            f"{text!r} is not a checkpoint's path", hint="Give a .safetensors file or a directory."
        )
    for candidate in (path, path.with_name(path.name + ".safetensors")):
        if present(candidate):
            return candidate
    if path.suffix in PICKLED:
        raise _not_read(path)
    raise CheckpointError(
        f"{visible(text)}: no such checkpoint{_near(path)}",
        hint=f"Give a .safetensors file, a directory, or a hub id ({', '.join(s + ':…' for s in schemes())}).",
    )


def _near(path: Path) -> str:
    """Suggest a checkpoint of the same folder with a similar name, with or without its suffix."""
    try:
        there = [
            entry
            for entry in path.parent.iterdir()
            if entry.suffix == ".safetensors" or entry.is_dir()
        ]
    except (OSError, ValueError):
        return ""
    names = {
        word: entry
        for entry in there
        for word in (entry.name, entry.name.removesuffix(".safetensors"))
    }
    return did_you_mean(path.name, names, shown=names.__getitem__)


def present(path: Path) -> bool:
    """Return True if there is something at `path`; raise CheckpointError if that cannot be read."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a NUL character, too
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    return True


def entries(folder: Path) -> list[str]:
    """List the names in a folder, in order."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed ({error.strerror})") from error


def weights_among(names: Iterable[str]) -> list[str]:
    """List the names of a folder's files that hold weights."""
    return [n for n in names if n.endswith(".safetensors") and n[0] != "." and n != BESIDE]


def is_graph_folder(path: Path) -> bool:
    """Return True if a folder holds a graph that `export` wrote, and no weights."""
    return (path / GRAPHS / GRAPH).is_file() and not weights_among(entries(path))


def read_folder(folder: Path, *, family: Family | None) -> Content:
    """Read config and weights of a directory.

    The layout is that of `family`, which the manifest names, else of the config.
    """
    of_config, config = config_of(folder)
    decides = family or of_config
    for name in (WEIGHTS,) if decides is None else decides.weight_files:
        if present(folder / name):
            return Content([TensorFile(folder / name), *state_beside(folder)], of_config, config)
        if present(folder / f"{name}{INDEX}"):
            shards = _shards(folder / f"{name}{INDEX}")
            return Content([*shards, *state_beside(folder)], of_config, config)
    names = entries(folder)
    weights = weights_among(names)
    if len(weights) == 1:
        return Content([TensorFile(folder / weights[0])], of_config, config)
    pickled = next((name for name in names if Path(name).suffix in PICKLED), None)
    if pickled is not None and not weights:
        raise _not_read(folder / pickled)
    if is_graph_folder(folder):
        raise CheckpointError(
            f"{folder}: holds a graph but no weights",
            hint="Only predict, serve, eval and hs.Predictor run a graph; give the checkpoint here.",
        )
    beside = folder.with_name(f"{folder.name}.safetensors")
    weight_files = dict.fromkeys(
        f.weight_files[0] for f in families() if f.weight_files[0] != WEIGHTS
    )
    raise CheckpointError(
        f"{folder}: {len(weights)} .safetensors files, none of them named {WEIGHTS}"
        if weights
        else f"{folder}: no weights found",
        hint=f"Did you mean {beside}?"
        if present(beside)
        else f"Looked for {WEIGHTS}, {WEIGHTS}{INDEX} and {' and '.join(weight_files)} with its config.",
    )


def state_beside(folder: Path) -> list[TensorFile]:
    """Return the file of a decision state in a folder, if there is one.

    A file of that name from elsewhere is ignored.
    """
    if not present(folder / BESIDE):
        return []
    file = TensorFile(folder / BESIDE)
    return [file] if any(name.startswith(PREFIX) for name in file.infos) else []


def config_of(folder: Path) -> tuple[Family | None, dict[str, Any] | None]:
    """Return the config in a folder, and its family."""
    for name in config_files():
        if present(folder / name):
            config = read_json(folder / name, most=MAX_CONFIG)
            if not isinstance(config, dict):
                raise CheckpointError(f"{folder / name}: is not a JSON object")
            bare = BareCheckpoint({}, str(folder), config=config)
            return family_of_bare(bare, config_file=name), config
    return None, None


def _shards(index: Path) -> list[TensorFile]:
    """Open the files that an index names.

    The names must be plain, of files beside the index that hold the tensors it lists.
    """
    content = read_json(index, most=MAX_INDEX)
    homes = content.get("weight_map") if isinstance(content, dict) else None
    files: dict[str, TensorFile] = {}
    why = hint = None
    if not isinstance(homes, dict) or not homes:
        why = "has no weight_map of tensors and files"
    elif missing_files := [
        n
        for n in homes.values()
        if not isinstance(n, str) or not n.isprintable() or not PLAIN.fullmatch(n)
    ]:
        why = f"names a file {str(missing_files[0])[:80]!r}, which is not one beside it"
        hint = "The index was not written by a library of models: do not use it."
    elif missing := [name for name in homes.values() if not present(index.parent / name)]:
        why = f"shard {missing[0]} is missing"
    else:
        count = 0
        for name in sorted(set(homes.values())):
            files[name] = TensorFile(index.parent / name)
            count += len(files[name].infos)
            if count > MAX_TENSORS:
                raise CheckpointError(f"{index}: its files hold more than {MAX_TENSORS:,} tensors")
        if wrong := [tensor for tensor, name in homes.items() if tensor not in files[name].infos]:
            why = f"tensor {wrong[0][:80]!r} is not in {homes[wrong[0]]}"
    if why is not None:
        raise CheckpointError(f"{index}: {why}", hint=hint)
    return list(files.values())


def _not_read(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: pickled checkpoints are not read",
        hint="Convert it to safetensors with its own library.",
    )


def check_names(names: Iterable[str], *, family: Family, where: str) -> None:
    """Refuse names that are not on the family's list of companions."""
    names = set(names)
    extra_files = sorted(names - set(family.companions(names)))
    if extra_files:
        raise CheckpointError(
            f"{where}: carries a file named {extra_files[0][:80]!r}, which does not belong to a {family.name} model",
            hint="The file was not written by hydrasurgeon as it is: do not use it.",
        )


def companions_inside(text: str, *, family: Family, where: str) -> dict[str, str]:
    """Name → text, out of a header's entry."""
    texts = parse_json(text, where, most=MAX_HEADER)
    if not isinstance(texts, dict) or not all(
        isinstance(companion, str) for companion in texts.values()
    ):
        raise CheckpointError(f"{where}: is not a JSON object of texts")
    check_names(texts, family=family, where=where)
    return texts


def companions_beside(folder: Path, *, family: Family) -> dict[str, str]:
    """Name → text, out of the folder that holds the weights."""
    names = family.companions(set(entries(folder)))
    return {name: read_text(_its_own(folder / name), most=MAX_TEXT) for name in names}


def descriptions_beside(folder: Path, *, family: Family) -> dict[str, str]:
    """Name → text of the files that say which model a folder holds."""
    names = [name for name in family.descriptions if present(folder / name)]
    return {name: read_text(_its_own(folder / name), most=MAX_CONFIG) for name in names}


def _its_own(path: Path) -> Path:
    """Return the path if it is no link out of its folder or the hub's cache.

    Content from elsewhere would otherwise be copied into what we write.
    """
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    blobs = home.parent.parent / "blobs"  # snapshots/COMMIT/NAME are links to them
    if real.is_relative_to(home) or (
        home.parent.name == "snapshots" and real.is_relative_to(blobs)
    ):
        return path
    raise CheckpointError(
        f"{path}: is a link to a file outside its directory", hint="Copy the file there."
    )
