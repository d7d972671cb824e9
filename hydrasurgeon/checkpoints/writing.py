"""Write checkpoints, and the small files beside them: each whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hydrasurgeon.checkpoints.card import CARD, model_card
from hydrasurgeon.checkpoints.companions import check_names
from hydrasurgeon.checkpoints.folder import CLIP_WEIGHTS, WEIGHTS
from hydrasurgeon.errors import OutputError
from hydrasurgeon.families import backend
from hydrasurgeon.files.manifest import FILES_KEY, HEADER_KEY, UNKNOWN, Manifest, sidecar
from hydrasurgeon.files.tensors import Planned, write_tensors

__all__ = [
    "output_path",
    "save",
    "texts_beside",
    "weights_in",
    "weights_name",
    "write_bytes",
    "write_text",
]


def output_path(out: str | Path, *, force: bool) -> Path:
    """`-o` as a path: NAME.safetensors, NAME (suffix added) or a directory; refused when it exists."""
    path = Path(out)
    if not (str(out).endswith(("/", os.sep)) or path.is_dir() or path.suffix == ".safetensors"):
        path = path.with_name(path.name + ".safetensors")
    taken = [
        p
        for p in ((path,) if path.suffix != ".safetensors" else (path, sidecar(path)))
        if p.exists()
    ]
    if path.is_dir() and not any(path.iterdir()):
        taken = []
    if taken and not force:
        raise OutputError(
            f"{taken[0]}: already exists", hint="Give --force to replace it, or another -o."
        )
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent}: no such folder", hint="Create it first.")
    return path


def save(
    out: Path,
    planned: Sequence[Planned],
    manifest: Callable[[str], Manifest],
    *,
    files: Mapping[str, str] | None = None,
) -> Manifest:
    """Write weights and manifest, each whole or not at all; the file is usable alone at every moment."""
    weights = weights_in(out, manifest(UNKNOWN).model.family)
    folder = weights.parent
    beside = sidecar(out) if weights is out else out / "heads.json"
    final: list[Manifest] = []

    def metadata(sha256: str | None) -> dict[str, str]:
        final.append(manifest(sha256 or UNKNOWN))
        header = {HEADER_KEY: final[-1].to_header()}
        if files and weights is out:
            check_names(files, family=final[-1].model.family, where="the companions")
            header[FILES_KEY] = json.dumps(files, sort_keys=True, separators=(",", ":"))
        return header

    with _whole_or_nothing(weights) as part:
        made = not folder.exists()
        folder.mkdir(exist_ok=True)
        try:
            write_tensors(part, planned, metadata)
        except BaseException:
            if made:
                part.unlink(missing_ok=True)
                folder.rmdir()
            raise
        beside.unlink(missing_ok=True)  # an old sidecar must never stand beside new weights
    alone = {beside.name: final[-1].to_json()}
    for name, text in (alone if weights is out else texts_beside(final[-1], files)).items():
        write_text(folder / name, text)
    return final[-1]


def weights_name(family: str) -> str:
    """What the weights are called in a directory."""
    return CLIP_WEIGHTS if family == "open_clip" else WEIGHTS


def weights_in(out: Path, family: str) -> Path:
    """The weight file of an output: the output itself, or the file in its directory."""
    return out if out.suffix == ".safetensors" else out / weights_name(family)


def texts_beside(manifest: Manifest, files: Mapping[str, str] | None) -> dict[str, str]:
    """All that lies beside the weights in the family's own directory layout."""
    family = backend(manifest.model.family)
    companions = dict(files or {})
    check_names(companions, family=family.family, where="the companions")
    card = model_card(manifest, family.usage(manifest))
    own = {CARD: card, "heads.json": manifest.to_json(), **family.directory(manifest)}
    # On the family's list there is no name of ours but preprocessor_config.json, which the model came with.
    return {**own, **companions}


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
    with _whole_or_nothing(path) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _whole_or_nothing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block succeeds."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        reason = (
            "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        )
        raise OutputError(
            f"{path}: cannot be written ({reason})", hint="Nothing was left half-written."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
