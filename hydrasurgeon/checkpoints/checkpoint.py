"""Find and open checkpoints: safetensors with the manifest inside and beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, cast

from pydantic import ValidationError
from typing_extensions import TypeVar

from hydrasurgeon.checkpoints.folder import (
    Content,
    companions_beside,
    companions_inside,
    config_of,
    descriptions_beside,
    find,
    present,
    read_folder,
    state_beside,
)
from hydrasurgeon.checkpoints.hub import fetch, is_hub_id, pinned
from hydrasurgeon.checkpoints.layout import check_members, check_tensors, member_hashes, selection
from hydrasurgeon.errors import CheckpointError, Disagreement, SurgeryError, UsageError
from hydrasurgeon.families import family_of, family_of_bare, weight_names
from hydrasurgeon.families.base import BareCheckpoint, Family
from hydrasurgeon.families.weights import Weight, by_name
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.manifest import (
    FILES_KEY,
    HEADER_KEY,
    UNKNOWN,
    Input,
    Manifest,
    ManifestT,
    Model,
    SingleManifest,
    Step,
    Tower,
    first_mistake,
    parse_manifest,
    read_manifest,
    sidecar,
)
from hydrasurgeon.files.tensors import Look, TensorFile, Tensors, weights_sha256
from hydrasurgeon.heads import Layers

DROPPED = "the decision state is dropped, as it was fitted to the old weights; run calibrate again"
"""Note of commands that drop a decision state."""
Kind = TypeVar("Kind", bound=Manifest, covariant=True, default=Manifest)
"""Kind of manifest of a checkpoint."""


@dataclass(frozen=True)
class Checkpoint(Generic[Kind]):
    """An opened checkpoint: header and manifest are read and agree, weights are still on disk."""

    path: Path
    family: Family
    tensors: Tensors
    manifest: Kind
    recorded: bool
    """False when the manifest was inferred from a bare file, so nothing vouches for the weights."""
    note: str | None = None
    """Note to the user about assumptions on a bare file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that live data needs (a tokenizer's files); they lie beside the weights or in the
    header.
    """
    hub_id: str | None = None
    """Hub id with the commit, for a checkpoint from the hub."""
    alias: str | None = None
    """Name in tables where another checkpoint has the same name."""
    engine: str | None = None
    """The one engine that runs it, where it is a graph; None where it has weights."""

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        """The family's table for this model, unpruned."""
        return by_name(self.family.weights(self.manifest.model))

    @cached_property
    def kept(self) -> Mapping[str, Layers]:
        """The heads and neurons of a single model."""
        manifest: Manifest = self.manifest
        assert manifest.kind != "hydra"
        return selection(manifest, self.weights)

    @property
    def name(self) -> str:
        return self.hub_id or self.path.name

    @property
    def stem(self) -> str:
        """The file's name without the ending of its format."""
        return self.path.name.removesuffix(SUFFIX)

    @property
    def unused(self) -> list[str]:
        """Tensors of the file that the model does not use, so that no hash covers them."""
        used = {self.tensors.stored(name) for name in self.tensors}
        return sorted({name for file in self.tensors.files for name in file.infos} - used)

    @property
    def home(self) -> Path:
        """A path whose folder the user may write to: outputs without -o lie beside it."""
        if self.hub_id is None:
            return self.path
        return Path(self.hub_id.partition(":")[2].partition("@")[0].rpartition("/")[2])

    def hashes(self, look: Look | None = None) -> tuple[dict[str, str], list[str]]:
        """Hash every tensor, and for each member of a hydra its weights.

        `look` gets to see the rows of the tensors.
        """
        manifest: Manifest = self.manifest
        if manifest.kind == "hydra":
            return member_hashes(manifest, self.weights, self.tensors, look)
        return self.tensors.digests(look), []

    def digests(self) -> dict[str, str]:
        """Hash all weights; refuse when the manifest was made for others."""
        manifest: Manifest = self.manifest
        digests, members = self.hashes()
        self.check(digests)
        if manifest.kind == "hydra":
            check_members(manifest, members, self.path)
        return digests

    def check_weights(self) -> None:
        """Refuse weights that are not the manifest's."""
        self.digests()

    def check(self, digests: Mapping[str, str]) -> str:
        actual = weights_sha256(self.tensors, digests)
        if self.recorded and actual != self.manifest.weights_sha256:
            raise Disagreement(
                f"{self.path}: the manifest belongs to other weights (it says {self.manifest.weights_sha256[:12]}…, the tensors hash to {actual[:12]}…)",
                hint="Restore the matching pair, or delete the manifest to treat the file as a bare checkpoint.",
            )
        return actual

    def graph_sha256(self) -> str | None:
        """Return the hash of a graph's file; None where there are weights."""
        return None

    def record(self, digests: Mapping[str, str]) -> Input:
        return Input(name=self.name, sha256=weights_sha256(self.tensors, digests))


Single = Checkpoint[SingleManifest]
"""A backbone or a member."""
CheckpointT = TypeVar("CheckpointT", bound=Checkpoint)
"""Kind of checkpoint, the same for arguments and results."""


def open_single(spec: str | Path, *, arch: str | None = None) -> Single:
    """Open a checkpoint of one model; refuse a hydra."""
    return as_single(open_checkpoint(spec, arch=arch))


def as_single(checkpoint: Checkpoint) -> Single:
    """Return the same checkpoint, typed as one model; refuse a hydra."""
    if checkpoint.manifest.kind == "hydra":
        raise SurgeryError(
            f"{checkpoint.path} is a hydra of {len(checkpoint.manifest.members)} members",
            hint="Score and prune its members, then fuse them again.",
        )
    return cast(Single, checkpoint)


def open_checkpoint(
    spec: str | Path, *, arch: str | None = None, arch_of_bare: bool = False, recorded: bool = False
) -> Checkpoint:
    """Open a checkpoint: a file, a name without suffix, a directory, a hub id.

    With `arch_of_bare` a checkpoint that says what it is does not need to agree with `arch`; with
    `recorded` one without a manifest is refused.
    """
    text = str(spec)
    hub = is_hub_id(text) and not present(Path(text))
    path = fetch(text) if hub else find(text)
    is_folder = path.is_dir()
    place = path / "heads.json" if is_folder else sidecar(path)
    beside = read_manifest(place) if present(place) else None
    if is_folder:
        content = read_folder(path, family=None if beside is None else family_of(beside.model))
    else:
        content = _around(path)
    tensors = Tensors(content.files)
    if not len(tensors):
        raise CheckpointError(f"{path}: holds no tensors")
    manifest = _agreed(content.files, beside, path)
    if manifest is None and recorded:
        raise CheckpointError(
            f"{path}: has no manifest, and so no decision state",
            hint="Give the checkpoint that `calibrate` wrote.",
        )
    checkpoint = (
        _identified(path, content, tensors, arch)
        if manifest is None
        else _recorded(path, content, tensors, manifest, None if arch_of_bare else arch)
    )
    model = checkpoint.manifest.model
    if model.num_classes == 1 and model.is_zero_shot:
        raise CheckpointError(f"{path}: has only one class", hint="Give it others.")
    check_tensors(
        checkpoint.manifest,
        checkpoint.weights,
        checkpoint.tensors,
        path,
        recorded=checkpoint.recorded,
        picked=checkpoint.manifest.kind != "hydra"
        and checkpoint.family.names(model, checkpoint.tensors) is not None,
    )
    unused = checkpoint.unused
    if unused and any(HEADER_KEY in file.metadata for file in content.files):
        raise Disagreement(
            f"{path}: tensor {unused[0]} has no hash in the manifest: it was added after the file was written",
            hint="Do not use the file until you know why.",
        )
    return replace(checkpoint, hub_id=pinned(text, path)) if hub else checkpoint


def _recorded(
    path: Path, content: Content, tensors: Tensors, manifest: Manifest, arch: str | None
) -> Checkpoint:
    """Open a checkpoint that has a manifest."""
    model = manifest.model
    # The same command again, after one that wrote the manifest, says nothing else than it.
    bare = BareCheckpoint(tensors, str(path), arch=arch)
    name = (bare.arch_name or model.arch).partition(",")[0]
    if arch is not None and (bare.asked_family, name) != (model.family, model.arch):
        raise UsageError(
            f"--arch {arch}: {path} already says that it is {model.family}:{model.arch}"
        )
    layers = sum(tower.layers for tower in manifest.towers.values())
    if layers > len(tensors):
        raise Disagreement(
            f"{path}: the manifest lists {layers} layers, the file has {len(tensors)} tensors"
        )
    family = family_of(model)
    family.check(model, manifest.towers, str(path))
    companions = _companions(path, content.files, family)
    family.check_files(model, companions, str(path))
    names = family.names(model, tensors) if manifest.kind != "hydra" else None
    if names is not None:
        state = {name: name for name in tensors if name.startswith(PREFIX)}
        tensors = Tensors(content.files, {**names, **state})
    return Checkpoint(path, family, tensors, manifest, recorded=True, files=companions)


def _identified(path: Path, content: Content, tensors: Tensors, arch: str | None) -> Checkpoint:
    """Open a bare checkpoint, identified by its config, or by its tensors' names and shapes."""
    bare = BareCheckpoint(tensors, str(path), arch=arch or None, config=content.config)
    of_config = None if bare.asked_family else content.family
    family = of_config or family_of_bare(bare)
    companions = _companions(path, content.files, family)
    described = {}
    if path.is_dir() or path.name in family.weight_files:
        folder = path if path.is_dir() else path.parent
        described = descriptions_beside(folder, family=family)
    try:
        model, note = family.identify(replace(bare, files=companions, described=described))
        manifest = unpruned(family, model)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_mistake(error)}") from error
    names = family.names(model, tensors)
    if names is not None:
        tensors = Tensors(content.files, names)
    return Checkpoint(path, family, tensors, manifest, recorded=False, note=note, files=companions)


def unpruned(family: Family, model: Model) -> SingleManifest:
    """Return the manifest of an unchanged model."""
    towers = family.towers(model)
    return SingleManifest(
        kind="backbone", model=model, towers=towers, kept=all_kept(towers), weights_sha256=UNKNOWN
    )


def all_kept(towers: Mapping[str, Tower]) -> dict[str, Layers]:
    """Return all heads of a model that was never pruned."""
    return {name: (tuple(range(tower.heads)),) * tower.layers for name, tower in towers.items()}


def _around(path: Path) -> Content:
    """Open a named weight file, with config and decision state of its directory."""
    file_names = weight_names()
    state = state_beside(path.parent) if path.name in file_names else []
    family, config = config_of(path.parent) if path.name in file_names else (None, None)
    # A timm model is known by its tensors, and these weights may be another library's than that of
    # the config.
    if family is None or not family.needs_config or path.name != family.weight_files[0]:
        family = config = None
    return Content([TensorFile(path), *state], family, config)


def _companions(path: Path, files: Sequence[TensorFile], family: Family) -> dict[str, str]:
    """Read the texts that travel with a checkpoint: from its header, else from its directory."""
    file = files[0]
    if FILES_KEY in file.metadata:
        where = f"{file.path} ({FILES_KEY})"
        return companions_inside(file.metadata[FILES_KEY], family=family, where=where)
    if path.is_file() and path.name not in family.weight_files:
        return {}
    return companions_beside(path if path.is_dir() else path.parent, family=family)


def _agreed(files: Sequence[TensorFile], beside: Manifest | None, path: Path) -> Manifest | None:
    """Return the manifest in the header, or the one beside it.

    Those of all shards and the one beside must agree.
    """
    texts = {file.metadata[HEADER_KEY]: file.path for file in files if HEADER_KEY in file.metadata}
    if len(texts) > 1:
        first, second = list(texts.values())[:2]
        raise Disagreement(f"{second}: has another manifest than {first.name}")
    inside = next(
        (parse_manifest(text, f"{where} (header)") for text, where in texts.items()), None
    )
    if inside is not None and beside is not None and inside != beside:
        where = path / "heads.json" if path.is_dir() else sidecar(path)
        raise Disagreement(
            f"{where}: disagrees with the manifest in the weights' header",
            hint=f"Delete {where.name} to use the one inside, or restore the matching file.",
        )
    return inside or beside


def rewritten(manifest: ManifestT, **changes: Any) -> ManifestT:
    """Return `manifest` with some fields replaced, validated again."""
    # mypy takes the type of one of two for either of them.
    return type(manifest).model_validate({**manifest.model_dump(), **changes})  # type: ignore[return-value]


def without_words(checkpoint: CheckpointT) -> CheckpointT:
    """Return the checkpoint without its bag-of-words model; the rest of the decision state stays."""
    decision = checkpoint.manifest.decision
    if decision is None or decision.words is None:
        return checkpoint
    alone = {"mode": "blend", "threshold": None, "weights": (decision.words.alone, 0.0)}
    changes: dict[str, Any] = {"words": decision.words.model_copy(update=alone)}
    if decision.words.mode == "cascade":
        changes["cascade"] = None
    manifest = checkpoint.manifest.model_copy(
        update={"decision": decision.model_copy(update=changes)}
    )
    return replace(checkpoint, manifest=manifest)


def undecided(checkpoint: CheckpointT) -> CheckpointT:
    """Return the checkpoint as it was before `calibrate`.

    Surgery makes other weights, which the state was not fitted to.
    """
    manifest: Manifest = checkpoint.manifest
    if manifest.decision is None:
        return checkpoint
    history, after = manifest.history, manifest.weights_sha256
    # Words that were kept are of an earlier `calibrate`.
    while at := [i for i, entry in enumerate(history) if entry.command == "calibrate"]:
        last = history[at[-1]]
        before = last.inputs[0].sha256
        later = (_read(entry, after, before) for entry in history[at[-1] + 1 :])
        history, after = (*history[: at[-1]], *later), before
    tensors = checkpoint.tensors
    names = {name: tensors.stored(name) for name in tensors if not name.startswith(PREFIX)}
    return replace(
        checkpoint,
        note=DROPPED,
        tensors=Tensors(tensors.files, names),
        manifest=rewritten(manifest, decision=None, weights_sha256=after, history=history),
    )


def _read(entry: Step, after: str, before: str) -> Step:
    """Return a step that read calibrated weights as if it had read the plain ones.

    `score` does so, and changes no weights.
    """
    inputs = tuple(
        source.model_copy(update={"sha256": before}) if source.sha256 == after else source
        for source in entry.inputs
    )
    return entry.model_copy(
        update={"inputs": inputs, "output": before if entry.output == after else entry.output}
    )
