"""Find and open checkpoints: safetensors with the manifest inside and beside it (DESIGN section 3)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hydrasurgeon.checkpoints.companions import companions_beside, companions_inside
from hydrasurgeon.checkpoints.hub import SCHEMES, fetch, pinned
from hydrasurgeon.checkpoints.writing import CLIP_WEIGHTS
from hydrasurgeon.errors import (
    CheckpointError,
    ManifestError,
    SurgeryError,
    UsageError,
)
from hydrasurgeon.families import backend
from hydrasurgeon.files.manifest import (
    FILES_KEY,
    HEADER_KEY,
    UNKNOWN,
    Input,
    Manifest,
    Model,
    first_mistake,
    parse_manifest,
    read_manifest,
    sidecar,
)
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256
from hydrasurgeon.heads import Kept
from hydrasurgeon.slicing import sliced_shape

__all__ = ["Checkpoint", "open_checkpoint", "rewritten", "single", "with_manifest"]

FLOATS = {"F16", "BF16", "F32", "F64"}
# OpenCLIP's name first: its repositories hold transformers' weights of the same model too.
WEIGHT_FILES = (CLIP_WEIGHTS, "model.safetensors", "model.safetensors.index.json")
PICKLED = {".bin", ".pt", ".pth", ".ckpt"}


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
        backend(manifest.model.family).check(manifest.model, manifest.towers, str(path))
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
        try:
            known = backend(family).identify(
                tensors, arch=arch.partition(":")[2] if arch else None, config=config,
                files=companions, where=str(path),
            )  # fmt: skip
        except ValidationError as error:
            raise CheckpointError(f"{path}: {first_mistake(error)}") from error
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
        where = f"{file.path} ({FILES_KEY})"
        return companions_inside(file.metadata[FILES_KEY], family=family, where=where)
    if path.is_file() and path.name != "model.safetensors":
        return {}
    return companions_beside(path if path.is_dir() else path.parent, family=family)


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


def rewritten(manifest: Manifest, **changes: Any) -> Manifest:
    """`manifest` with some fields replaced, validated again."""
    return Manifest.model_validate({**manifest.model_dump(), **changes})


def with_manifest(checkpoint: Checkpoint, manifest: Manifest) -> Checkpoint:
    return replace(checkpoint, manifest=manifest, recorded=True)
