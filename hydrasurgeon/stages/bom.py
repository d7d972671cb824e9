"""bom: a checkpoint's bill of materials (CycloneDX 1.6, ML-BOM), all of it from its manifest and its files.

It holds no time and no random number: the same files give the same document.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hydrasurgeon.checkpoints.own_files import own_files
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.errors import ManifestError, UsageError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.atomic import output_file, write_text
from hydrasurgeon.files.history import command_line, installed
from hydrasurgeon.files.locks import releases_claims
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.mixture import shown
from hydrasurgeon.heads import count
from hydrasurgeon.lookup import need
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

T = TypeVar("T", bound=tuple[object, ...])

PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name that PyPI allows."""
# Of ancestors, of data sets and of packages: far more than any history names, and seconds of the library's work.
MAX_COMPONENTS = 1_000
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "hydrasurgeon.bom/1")
"""What serial numbers are derived in, from the document's own hash."""


@dataclass(frozen=True)
class Billed:
    """The document, and where it was written; None if it is for stdout."""

    path: Path | None
    text: str
    components: int


@releases_claims
def bom(
    checkpoint: str | Path, *, out: str | Path | None = None, arch: str | None = None, force: bool = False
) -> Billed:
    """Write what a checkpoint consists of and what went into it."""
    need("cyclonedx", purpose="bom")
    opened = open_checkpoint(checkpoint, arch=arch)
    folder, files = own_files(opened)
    target = None
    if out is not None:
        if Path(out).suffix != ".json":
            raise UsageError(f"-o {out}: a bill of materials is a .json file")
        target = output_file(out, option="-o", force=force, inputs=[checkpoint, *files])
    sha256 = opened.record(opened.digests()).sha256
    text, components = _document(opened, sha256, {_named(p, folder): _sha256(p) for p in files})
    if target is not None:
        write_text(target, text)
    return Billed(target, text, components)


def _named(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _document(checkpoint: Checkpoint, sha256: str, files: Mapping[str, str]) -> tuple[str, int]:
    """The whole document, and how many components it has."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    data, packages = _data(checkpoint.manifest), _packages(checkpoint.manifest)
    model = _model(checkpoint, sha256, files)
    bill = Bom(components=[*data, *packages])
    bill.metadata.component = model
    bill.metadata.tools.components.add(
        Component(name="hydrasurgeon", type=ComponentType.APPLICATION, version=installed("hydrasurgeon"))
    )
    bill.register_dependency(model, [*data, *packages])
    plain: dict[str, Any] = json.loads(JsonV1Dot6(bill).output_as_string())
    # The library stamps the document with the time and a random number, and has no model cards.
    del plain["metadata"]["timestamp"], plain["serialNumber"]
    datasets = [str(component.bom_ref) for component in data]
    plain["metadata"]["component"]["modelCard"] = _card(checkpoint.manifest, datasets)
    content = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    plain["serialNumber"] = uuid.uuid5(NAMESPACE, content).urn
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n", 1 + len(data) + len(packages)


def _model(checkpoint: Checkpoint, sha256: str, files: Mapping[str, str]) -> Component:
    """The checkpoint: its files, what it descends from, what is known of its heads."""
    from cyclonedx.model.component import Component, ComponentType, Pedigree

    manifest = checkpoint.manifest
    weights = {name: sha for name, sha in files.items() if name == checkpoint.path.name}
    return Component(
        name=visible(checkpoint.name),
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"model:{sha256}",
        hashes=_hashes(*weights.values()),
        components=[
            Component(name=visible(name), type=ComponentType.FILE, bom_ref=f"file:{visible(name)}", hashes=_hashes(sha))
            for name, sha in files.items()
        ],
        pedigree=Pedigree(ancestors=_ancestors(manifest), notes=_notes(manifest)),
        properties=_properties(
            {
                "kind": manifest.kind,
                "weights_sha256": sha256,
                "parameters": sum(math.prod(i.shape) for i in checkpoint.tensors.values()),
                **_heads(manifest),
            }
        ),
    )


def _heads(manifest: Manifest) -> dict[str, object]:
    total = sum(tower.layers * tower.heads for tower in manifest.towers.values())
    facts: dict[str, object] = {"heads": total}
    if manifest.kind != "hydra":
        return facts | {"heads_kept": count(manifest.kept)}
    for i, member in enumerate(manifest.members):
        facts[f"member_{i}.heads_kept"] = count(member.kept)
        facts[f"member_{i}.weights_sha256"] = member.sha256
    if manifest.fusion.weights is not None:
        facts["fusion.weights"] = shown(manifest.fusion.weights)
    return facts | {"fusion.mlp": manifest.fusion.mlp, "fusion.trunk": manifest.fusion.trunk}


def _ancestors(manifest: Manifest) -> list[Component]:
    """Every checkpoint that a step of the history read."""
    from cyclonedx.model.component import Component, ComponentType

    inputs = {(source.sha256, source.name) for entry in manifest.history for source in entry.inputs}
    return [
        Component(
            name=visible(name),
            type=ComponentType.MACHINE_LEARNING_MODEL,
            bom_ref=f"ancestor:{sha256}:{visible(name)}",
            hashes=_hashes(sha256),
            properties=_properties({"hash_of": "tensors"}),
        )
        for sha256, name in _few(inputs, "checkpoints")
    ]


def _notes(manifest: Manifest) -> str | None:
    lines = [f"hydrasurgeon {shlex.join(command_line(entry))}" for entry in manifest.history]
    return "\n".join(visible(line) for line in lines) or None


def _data(manifest: Manifest) -> list[Component]:
    """Every data set that a step of the history saw, once for each content."""
    from cyclonedx.model.component import Component, ComponentType

    seen = {(record.sha256, record.spec, record.rows) for entry in manifest.history for record in entry.data}
    return [
        Component(
            name=visible(spec),
            type=ComponentType.DATA,
            bom_ref=f"data:{sha256}:{visible(spec)}:{rows}",
            hashes=_hashes(sha256),
            properties=_properties({"hash_of": "samples", "rows": rows}),
        )
        for sha256, spec, rows in _few(seen, "data sets")
    ]


def _packages(manifest: Manifest) -> list[Component]:
    """Every package that a step of the history ran with."""
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    seen = {pair for entry in manifest.history for pair in entry.versions.items()}
    return [
        Component(
            name=name,
            type=ComponentType.LIBRARY,
            version=visible(version),
            bom_ref=f"package:{name}@{visible(version)}",
            purl=PackageURL("pypi", name=name, version=visible(version)),
        )
        for name, version in _few(seen, "packages")
        if PACKAGE.fullmatch(name)
    ]


def _few(seen: set[T], what: str) -> list[T]:
    """In their order, unless a history that somebody made up names too many."""
    if len(seen) > MAX_COMPONENTS:
        raise ManifestError(
            f"the history names {len(seen):,} {what}; a bill of materials lists at most {MAX_COMPONENTS:,}"
        )
    return sorted(seen)


def _hashes(*sha256: str) -> list[Any]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in sha256]


def _properties(facts: Mapping[str, object]) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=f"hydrasurgeon:{key}", value=str(value)) for key, value in facts.items()]


def _card(manifest: Manifest, datasets: Iterable[str]) -> dict[str, Any]:
    """What the standard asks of a model card, as far as a manifest tells it."""
    model = manifest.model
    images = "input_size" in model.preprocess
    reads = "x".join(str(n) for n in model.preprocess["input_size"]) if images else None
    parameters: dict[str, Any] = {
        "task": family_of(model).usage(manifest).task,
        "architectureFamily": "transformer",
        "modelArchitecture": f"{model.family}:{model.arch}",
        "inputs": [{"format": f"image {reads}" if images else "text"}],
        "outputs": [{"format": f"probabilities of {model.num_classes} classes"}],
    }
    refs = [{"ref": ref} for ref in datasets]
    return {"modelParameters": parameters | ({"datasets": refs} if refs else {})}
