"""The manifest: what a checkpoint is and where it comes from (DESIGN section 3, hydrasurgeon.manifest/1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.heads import Layers

__all__ = [
    "FORMAT",
    "HEADER_KEY",
    "DataRecord",
    "Fusion",
    "Input",
    "Manifest",
    "Member",
    "Model",
    "Score",
    "Step",
    "Tower",
    "json_schema",
    "parse_manifest",
    "read_manifest",
    "sidecar",
]

FORMAT = "hydrasurgeon.manifest/1"
HEADER_KEY = "hydrasurgeon"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Model(_Record):
    """What the family's library must be told to build the model before anything was pruned."""

    family: Literal["timm", "transformers", "open_clip"]
    arch: str
    config: dict[str, Any] = {}
    num_classes: int = Field(ge=0)
    labels: tuple[str, ...] | None = None
    preprocess: dict[str, Any] = {}


class Tower(_Record):
    """Sizes of one stack of layers, as they were before pruning."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    dim: int = Field(ge=1)


class DataRecord(_Record):
    """Data a step has seen: rows and content, not where it lay."""

    spec: str
    rows: int
    sha256: str


class Score(_Record):
    """One criterion's verdict: a number per head, or the order in which heads go."""

    values: dict[str, tuple[tuple[float, ...], ...]] | None = None
    """tower → [layer][head]; higher = keep; heads that were already gone score 0."""
    order: tuple[tuple[str, int, int], ...] | None = None
    trace: tuple[float, ...] | None = None
    settings: dict[str, Any] = {}
    data: tuple[DataRecord, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Score:
        if self.values is None and self.order is None:
            raise ValueError("a score needs values or an order")
        return self


class Member(_Record):
    """One member inside a hydra."""

    kept: dict[str, Layers]
    sha256: str


class Fusion(_Record):
    mlp: Literal["average", "separate"]
    trunk: int = Field(ge=0)


class Input(_Record):
    name: str
    sha256: str


class Step(_Record):
    """One command that helped to make this checkpoint."""

    command: str
    args: dict[str, Any] = {}
    inputs: tuple[Input, ...] = ()
    data: tuple[DataRecord, ...] = ()
    seed: int | None = None
    versions: dict[str, str] = {}


class Manifest(_Record):
    """The whole manifest; `kept` for a backbone or member, `members` and `fusion` for a hydra."""

    format: Literal["hydrasurgeon.manifest/1"] = "hydrasurgeon.manifest/1"
    kind: Literal["backbone", "member", "hydra"]
    model: Model
    towers: dict[str, Tower]
    kept: dict[str, Layers] | None = None
    scores: dict[str, Score] = {}
    members: tuple[Member, ...] | None = None
    fusion: Fusion | None = None
    weights_sha256: str
    history: tuple[Step, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if self.kind == "hydra":
            if self.members is None or self.fusion is None or len(self.members) < 2:
                raise ValueError("a hydra needs at least two members and a fusion record")
            selections = [member.kept for member in self.members]
        else:
            if self.kept is None:
                raise ValueError(f"a {self.kind} needs kept heads")
            selections = [self.kept]
        for kept in selections:
            _check_kept(kept, self.towers)
        return self

    def to_json(self) -> str:
        """Readable, stable JSON: the sidecar file's content."""
        return json.dumps(self._plain(), indent=1, ensure_ascii=False) + "\n"

    def to_header(self) -> str:
        """Compact JSON for the safetensors header."""
        return json.dumps(self._plain(), separators=(",", ":"), ensure_ascii=True)

    def _plain(self) -> dict[str, Any]:
        plain = self.model_dump(mode="json")
        optional = ("kept", "members", "fusion")
        return {
            **{
                key: value
                for key, value in plain.items()
                if key not in optional or value is not None
            },
            "scores": {
                name: {key: value for key, value in score.items() if value is not None}
                for name, score in plain["scores"].items()
            },
        }


def _check_kept(kept: Mapping[str, Layers], towers: Mapping[str, Tower]) -> None:
    if set(kept) != set(towers):
        raise ValueError(
            f"kept heads speak of towers {sorted(kept)}, the model has {sorted(towers)}"
        )
    for name, rows in kept.items():
        tower = towers[name]
        if len(rows) != tower.layers:
            raise ValueError(
                f"{name}: kept heads for {len(rows)} layers, the tower has {tower.layers}"
            )
        for layer, row in enumerate(rows):
            if list(row) != sorted(set(row)) or any(not 0 <= h < tower.heads for h in row):
                raise ValueError(
                    f"{name} layer {layer}: {list(row)} are not sorted heads below {tower.heads}"
                )


def parse_manifest(text: str | bytes, where: str) -> Manifest:
    """A manifest from JSON; `where` names the source in the error."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"{where}: the manifest is not JSON ({error})") from error
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        hint = "Upgrade hydrasurgeon." if str(found).startswith("hydrasurgeon.manifest/") else None
        raise ManifestError(f"{where}: format {found!r}; this version reads {FORMAT!r}", hint=hint)
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ManifestError(f"{where}: {at + ': ' if at else ''}{first['msg']}") from error


def read_manifest(path: Path) -> Manifest:
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from error


def sidecar(weights: Path) -> Path:
    """`X.safetensors` → `X.heads.json`."""
    return weights.with_name(weights.name.removesuffix(".safetensors") + ".heads.json")


def json_schema() -> str:
    """The manifest's JSON Schema."""
    return json.dumps({"$id": FORMAT, **Manifest.model_json_schema()}, indent=1)


UNKNOWN = "0" * 64
"""A digest that is not known yet."""


FILES_KEY = "hydrasurgeon.files"
"""Header key of the companions' texts, so that a lone file keeps its tokenizer."""
