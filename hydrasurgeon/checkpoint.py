"""Find, open and write checkpoints: safetensors with the manifest inside and beside it (DESIGN section 3)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.backends import backend
from hydrasurgeon.errors import (
    CheckpointError,
    ManifestError,
    OutputError,
    SurgeryError,
    UsageError,
)
from hydrasurgeon.heads import Kept
from hydrasurgeon.hub import SCHEMES, fetch, pinned
from hydrasurgeon.manifest import (
    HEADER_KEY,
    Input,
    Manifest,
    Model,
    parse_manifest,
    read_manifest,
    sidecar,
)
from hydrasurgeon.slicing import sliced_shape
from hydrasurgeon.tensorfile import Planned, TensorFile, Tensors, weights_sha256, write_tensors

__all__ = [
    "Checkpoint",
    "open_checkpoint",
    "output_path",
    "save",
    "single",
    "texts_beside",
    "weights_in",
    "weights_name",
]

FLOATS = {"F16", "BF16", "F32", "F64"}
CLIP_WEIGHTS = "open_clip_model.safetensors"
# OpenCLIP's name first: its repositories hold transformers' weights of the same model too.
WEIGHT_FILES = (CLIP_WEIGHTS, "model.safetensors", "model.safetensors.index.json")
PICKLED = {".bin", ".pt", ".pth", ".ckpt"}
UNKNOWN = "0" * 64
FILES_KEY = "hydrasurgeon.files"
"""Header key of the companions' texts, so that a lone file keeps its tokenizer."""


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: header and manifest are read and agree, weights are still on disk."""

    path: Path
    tensors: Tensors
    manifest: Manifest
    recorded: bool
    """False when the manifest was inferred from a bare file, so nothing vouches for the weights."""
    note: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that live data needs (a tokenizer's files); they lie beside the weights or in the header."""
    hub_id: str | None = None
    """Where on the hub it comes from, with the commit."""

    @property
    def name(self) -> str:
        return self.hub_id or self.path.name

    @property
    def home(self) -> Path:
        """A path whose folder the user may write to: outputs without -o lie beside it."""
        if self.hub_id is None:
            return self.path
        return Path(self.hub_id.partition(":")[2].partition("@")[0].rpartition("/")[2])

    def digests(self) -> dict[str, str]:
        """Hash all weights; refuse when the manifest was made for others."""
        digests = self.tensors.digests()
        self.check(digests)
        return digests

    def check(self, digests: Mapping[str, str]) -> str:
        found = weights_sha256(self.tensors, digests)
        if self.recorded and found != self.manifest.weights_sha256:
            raise ManifestError(
                f"{self.path}: the manifest belongs to other weights (it says {self.manifest.weights_sha256[:12]}…, "
                f"the tensors hash to {found[:12]}…)",
                hint="Restore the matching pair, or delete the manifest to treat the file as a bare checkpoint.",
            )
        return found

    def record(self, digests: Mapping[str, str]) -> Input:
        return Input(name=self.name, sha256=weights_sha256(self.tensors, digests))


def open_checkpoint(spec: str | Path, *, arch: str | None = None) -> Checkpoint:
    """Any checkpoint DESIGN section 3 names: a file, a name without suffix, a directory, a hub id."""
    text = str(spec)
    scheme = text.partition(":")[0]
    hub = scheme in SCHEMES and not Path(text).exists()
    path = fetch(text) if hub else _find(text)
    config: dict[str, Any] | None = None
    if path.is_dir():
        files, config = _directory(path)
    else:
        files, config = [TensorFile(path)], _config_beside(path)
    tensors = Tensors(files)
    if not len(tensors):
        raise CheckpointError(f"{path}: holds no tensors")
    manifest = _manifest_of(path, files)
    companions: dict[str, str] = {}
    if manifest is not None:
        companions = _companions(path, files[0], manifest.model.family)
        if arch is not None:
            raise UsageError(
                f"--arch {arch}: {path} already says that it is {manifest.model.family}:{manifest.model.arch}"
            )
        wrong = backend(manifest.model.family).check_files(manifest.model, companions)
        if wrong is not None:
            raise ManifestError(f"{path}: {wrong}", hint="Restore the matching files.")
        checkpoint = Checkpoint(path, tensors, manifest, recorded=True, files=companions)
    else:
        family = (
            arch.partition(":")[0] if arch is not None else (config or {}).get("__family__", "timm")
        )
        companions = _companions(path, files[0], family)
        known = backend(family).identify(
            tensors, arch=arch.partition(":")[2] if arch else None, config=config,
            files=companions, where=str(path),
        )  # fmt: skip
        manifest = Manifest(
            kind="backbone",
            model=known.model,
            towers=known.towers,
            kept={
                name: (tuple(range(tower.heads)),) * tower.layers
                for name, tower in known.towers.items()
            },
            weights_sha256=UNKNOWN,
        )
        checkpoint = Checkpoint(
            path, tensors, manifest, recorded=False, note=known.note, files=companions
        )
    if manifest.kind != "hydra":
        names = backend(manifest.model.family).names(manifest.model, tensors)
        if names is not None:
            checkpoint = replace(checkpoint, tensors=Tensors(files, names))
    if hub:
        checkpoint = replace(checkpoint, hub_id=pinned(text, path))
    _check_tensors(checkpoint)
    return checkpoint


def single(checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    """The model and kept heads of a backbone or member; a hydra is refused."""
    manifest = checkpoint.manifest
    if manifest.kept is None:
        raise SurgeryError(
            f"{checkpoint.path} is a hydra of {len(manifest.members or ())} members",
            hint="Score, prune and finetune its members, then fuse them again.",
        )
    return manifest.model, dict(manifest.kept)


def _find(text: str) -> Path:
    path = Path(text)
    for candidate in (path, path.with_name(path.name + ".safetensors")):
        if candidate.exists():
            return candidate
    if path.suffix in PICKLED:
        raise _not_read(path)
    raise CheckpointError(
        f"{text}: no such checkpoint",
        hint=f"Give a .safetensors file, a directory, or a hub id ({', '.join(s + ':…' for s in SCHEMES)}).",
    )


def _not_read(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: pickled checkpoints are not read",
        hint="Convert it to safetensors with its own library.",
    )


def _directory(path: Path) -> tuple[list[TensorFile], dict[str, Any]]:
    """The weight files and the config of a timm, transformers or open_clip directory."""
    config: dict[str, Any] = {}
    for name, family in (("open_clip_config.json", "open_clip"), ("config.json", "timm")):
        if (path / name).is_file():
            try:
                config = json.loads((path / name).read_text(encoding="utf-8"))
            except ValueError as error:
                raise CheckpointError(f"{path / name}: not JSON ({error})") from error
            config["__family__"] = "transformers" if "model_type" in config else family
            break
    for name in WEIGHT_FILES:
        weights = path / name
        if not weights.is_file():
            continue
        if name == CLIP_WEIGHTS and config.get("__family__") != "open_clip":
            continue
        if name.endswith(".json"):
            shards = sorted(
                set(json.loads(weights.read_text(encoding="utf-8"))["weight_map"].values())
            )
            missing = [shard for shard in shards if not (path / shard).is_file()]
            if missing:
                raise CheckpointError(f"{path}: shard {missing[0]} is missing")
            return [TensorFile(path / shard) for shard in shards], config
        return [TensorFile(weights)], config
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return [TensorFile(found[0])], config
    pickled = next((p.name for p in sorted(path.iterdir()) if p.suffix in PICKLED), None)
    if pickled is not None:
        raise _not_read(path / pickled)
    raise CheckpointError(
        f"{path}: no weights found", hint=f"Looked for {', '.join(WEIGHT_FILES)}."
    )


def _config_beside(path: Path) -> dict[str, Any] | None:
    """The config of the directory a weight file lies in, for those who name the file itself."""
    clip = path.name == CLIP_WEIGHTS
    beside = path.parent / ("open_clip_config.json" if clip else "config.json")
    if path.name not in (CLIP_WEIGHTS, "model.safetensors") or not beside.is_file():
        return None
    with contextlib.suppress(ValueError, OSError):
        config = json.loads(beside.read_text(encoding="utf-8"))
        if clip or "model_type" in config:
            return {**config, "__family__": "open_clip" if clip else "transformers"}
    return None


def _companions(path: Path, file: TensorFile, family: str) -> dict[str, str]:
    """The texts that travel with a checkpoint: from its header, else from its directory."""
    if FILES_KEY in file.metadata:
        found: dict[str, str] = json.loads(file.metadata[FILES_KEY])
        return found
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name != "model.safetensors":
        return {}
    present = {entry.name for entry in folder.iterdir() if entry.is_file()}
    return {
        name: (folder / name).read_text(encoding="utf-8")
        for name in backend(family).companions(present)
    }


def _manifest_of(path: Path, files: Sequence[TensorFile]) -> Manifest | None:
    embedded = files[0].metadata.get(HEADER_KEY)
    inside = parse_manifest(embedded, f"{files[0].path} (header)") if embedded is not None else None
    outside_path = path / "heads.json" if path.is_dir() else sidecar(path)
    outside = read_manifest(outside_path) if outside_path.is_file() else None
    if inside is not None and outside is not None and inside != outside:
        raise ManifestError(
            f"{outside_path}: disagrees with the manifest inside {files[0].path.name}",
            hint=f"Delete {outside_path.name} to use the one inside, or restore the matching file.",
        )
    return inside or outside


def _check_tensors(checkpoint: Checkpoint) -> None:
    """Every tensor the architecture needs is there, with the shape the kept heads give it."""
    manifest = checkpoint.manifest
    if manifest.kind == "hydra":
        return  # its plan is checked where its members are put together
    family = backend(manifest.model.family)
    shapes = dict(family.expected(manifest.model, manifest.towers))
    shapes.update(head_shapes(manifest, shapes, manifest.kept or {}))
    source = f"{manifest.model.family}:{manifest.model.arch}"
    for name, shape in shapes.items():
        if name not in checkpoint.tensors:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} is missing",
                hint=f"{source} needs it: the file is incomplete.",
            )
        info = checkpoint.tensors[name]
        if info.shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} has shape {info.shape}, {source} with these heads needs {shape}"
            )
        if info.dtype not in FLOATS:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} has dtype {info.dtype}; weights must be one of {', '.join(sorted(FLOATS))}",
                hint="Quantised checkpoints cannot be cut: start from the floating-point one.",
            )


def head_shapes(
    manifest: Manifest, full: Mapping[str, tuple[int, ...]], kept: Kept
) -> dict[str, tuple[int, ...]]:
    """The shapes that `kept` gives to the tensors that hold heads."""
    family = backend(manifest.model.family)
    return {
        spec.name: sliced_shape(
            full[spec.name], len(row), spec=spec, head_dim=manifest.towers[tower].head_dim
        )
        for tower, rows in kept.items()
        for layer, row in enumerate(rows)
        for spec in family.head_tensors(manifest.model, tower, layer)
    }


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
    return CLIP_WEIGHTS if family == "open_clip" else "model.safetensors"


def weights_in(out: Path, family: str) -> Path:
    """The weight file of an output: the output itself, or the file in its directory."""
    return out if out.suffix == ".safetensors" else out / weights_name(family)


def texts_beside(manifest: Manifest, files: Mapping[str, str] | None) -> dict[str, str]:
    """All that lies beside the weights in the family's own directory layout."""
    own = backend(manifest.model.family).directory(manifest)
    return {"heads.json": manifest.to_json(), **own, **(files or {})}


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


def rewritten(manifest: Manifest, **changes: Any) -> Manifest:
    """`manifest` with some fields replaced, validated again."""
    return Manifest.model_validate({**manifest.model_dump(), **changes})


def with_manifest(checkpoint: Checkpoint, manifest: Manifest) -> Checkpoint:
    return replace(checkpoint, manifest=manifest, recorded=True)
