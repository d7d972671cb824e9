"""The manifest: what a checkpoint is and where it comes from."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.decided import DecisionRecord, Record, calibrated_by, silent_of
from hydrasurgeon.files.untrusted import must, parse_json, read_bytes
from hydrasurgeon.heads import Layers
from hydrasurgeon.lookup import imported, plugins

FORMAT = "hydrasurgeon.manifest/1"
"""Format and version of a manifest."""
HEADER_KEY = "hydrasurgeon"
"""Header key of the manifest itself."""
UNKNOWN = "0" * 64
"""A digest that is not known yet."""
FILES_KEY = "hydrasurgeon.files"
"""Header key of the companions' texts, so that a lone file keeps its tokenizer."""

# The labels of 100,000 classes, or a hundred circuits of a large model, fit into this.
MAX_BYTES = 16 << 20
MOST_SEEN = 1 << 15
"""Rows of training data whose hashes are kept."""
MOST_LEVELS = 11
"""Different whole numbers that are levels, as 0 to 10 are, rather than amounts."""
# Layers, heads and members far beyond any model there is: what loops and masks are made of.
MAX_COUNT = 4096
OF_NEURONS = "neurons-"
"""Prefix of the names of scores of neurons."""
MAX_WIDTH = 1 << 20
"""Numbers in a token, or in one head: far beyond any model there is."""
MAX_CLASSES = 1 << 24
"""Rows of a classifier: far beyond any data set there is."""

LONG_LIST = re.compile(r"\[(?:\s*\d+,){16,}\s*\d+\s*\]")
"""Whole numbers one below the other."""

FAMILY_NAMES = ("timm", "transformers", "open_clip")
"""Families that a model may be of; those of plugins come on top."""
TASK_PLACES = {
    "single_label": "hydrasurgeon.tasks.single_label:SingleLabel",
    "binary": "hydrasurgeon.tasks.binary:Binary",
    "multi_label": "hydrasurgeon.tasks.multi_label:MultiLabel",
    "regression": "hydrasurgeon.tasks.regression:Regression",
    "token_classification": "hydrasurgeon.tasks.token_classification:TokenClassification",
}
"""Task → the place of its class; tasks of plugins come on top."""


def _json(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record if it holds finite JSON values; refuse others."""
    try:
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"not JSON ({error})") from error
    return record


def _printable(text: str) -> str:
    must((text.isprintable(), "must not hold control characters"))
    return text


def task_class(name: str) -> Any:
    """Import the class of a task."""
    return imported(TASK_PLACES[name]) if name in TASK_PLACES else plugins("tasks")[name]


def _one_of(group: str, built_in: Iterable[str], name: object) -> str:
    """Return a name that is built in, or that a plugin adds to this group; refuse others."""
    names = [*built_in]
    if name not in names:
        names += plugins(group)
    *rest, last = map(repr, names)
    must((name in names, f"Input should be {', '.join(rest)} or {last}"))
    return str(name)


FamilyName = Annotated[
    str,
    PlainValidator(partial(_one_of, "families", FAMILY_NAMES)),
    WithJsonSchema({"enum": [*FAMILY_NAMES], "type": "string"}),
]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Index = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Text = Annotated[str, Field(max_length=10_000)]
TowerName = Annotated[str, Field(pattern="^(vision|text)$")]
Inputs = Literal["text", "text_pair"]
"""Inputs of a model of texts: one text, or two together."""
Rows = tuple[tuple[Index, ...], ...]
Neurons = tuple[
    Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_WIDTH)], ...], Field(min_length=1)], ...
]
"""For each layer, the neurons of its MLP that stay."""
TaskName = Annotated[
    str,
    PlainValidator(partial(_one_of, "tasks", TASK_PLACES)),
    WithJsonSchema({"enum": [*TASK_PLACES], "type": "string"}),
]
"""Meaning of logits: one of several classes; yes or no, by one logit; any number of labels; a
number; a tag for each word.
"""
Json = Annotated[dict[str, Any], AfterValidator(_json)]
"""JSON values of a library's, a criterion's or a command's own: whoever reads one checks what it
needs.
"""


def usual_task(classes: int) -> TaskName:
    """Return the task of a model that names none: one logit can only say yes or no."""
    return "binary" if classes == 1 else "single_label"


def _usual(fields: dict[str, Any]) -> TaskName:
    zero_shot = "zero_shot" in fields.get("config", ())
    return usual_task(0 if zero_shot else fields.get("num_classes", 0))


class Pooling(Record):
    """Rule that turns the tokens of a text into the one vector that its classifier reads."""

    mode: Literal["mean", "cls", "last", "words"]
    """The mean over real tokens, the first token, or the last real one; or none of all tokens: each
    word's first.
    """
    normalize: bool = False
    """True if the vector is scaled to length 1."""


OF_WORDS = Pooling(mode="words")
"""Pooling of models that answer for every word."""


class Model(Record):
    """Parameters with which the family's library builds the unpruned model."""

    family: FamilyName
    arch: Name
    config: Json = Field(default={})
    num_classes: int = Field(ge=0, le=MAX_CLASSES)
    labels: tuple[Text, ...] | None = None
    preprocess: Json = Field(default={})
    task: TaskName = Field(default_factory=lambda fields: _usual(fields))
    """Absent from files of models that choose one of several classes."""
    inputs: Inputs | None = None
    """Inputs that it was tuned or calibrated on; absent if unknown, or for images."""
    pooling: Pooling | None = None
    """Pooling of a sentence embedder; absent if the architecture's own classifier pools."""
    levels: tuple[int, ...] | None = Field(default=None, min_length=2, max_length=MOST_LEVELS)
    """The whole numbers that a model of numbers was tuned on, where they are few."""
    _silent = silent_of("pooling", "inputs", "levels", task="single_label")

    @model_validator(mode="after")
    def _as_many_labels_as_classes(self) -> Model:
        count = len(self.labels or ())
        must(
            (
                self.labels is None or count == self.num_classes,
                f"{count} labels for {self.num_classes} classes",
            ),
            (
                self.task != "binary" or self.num_classes == 1,
                f"binary: has {self.num_classes} classes",
            ),
            (
                self.task != "regression" or self.num_classes in (1, 2),
                f"regression: has {self.num_classes} outputs, a value and perhaps a variance",
            ),
            (
                self.levels is None
                or (self.task == "regression" and [*self.levels] == sorted({*self.levels})),
                "levels: are of numbers, in rising order",
            ),
        )
        return self

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that are read; None where it reads images, or long texts in windows."""
        length = self.preprocess.get("max_length")
        return None if length is None or self.pooling == OF_WORDS else int(length)

    @property
    def choices(self) -> int:
        """Classes that a decision chooses between: one logit has no and yes."""
        return 2 if self.task == "binary" else self.num_classes

    @property
    def is_zero_shot(self) -> bool:
        """True if class names, and no trained classifier, define the classes."""
        return "zero_shot" in self.config


class Tower(Record):
    """Sizes of one stack of layers, as they were before pruning."""

    layers: Count
    heads: Count
    head_dim: Width
    dim: Width

    @classmethod
    def of(cls, layers: int, heads: int, dim: int) -> Self:
        """Return a tower whose heads add up to its width."""
        return cls(layers=layers, heads=heads, head_dim=dim // heads, dim=dim)


class DataRecord(Record):
    """Data a step has seen: rows and content, not where it lay."""

    spec: Text
    rows: int = Field(ge=0, lt=2**63)
    sha256: Sha256
    seen: str | None = Field(
        default=None, max_length=6 * MOST_SEEN, pattern=r"^[A-Za-z0-9+/]*={0,2}$"
    )
    """Four bytes of each row's hash, of data that the model was trained on: `measuring/known.py`."""
    _silent = silent_of("seen")

    @field_validator("seen")
    @classmethod
    def _check_seen(cls, seen: str | None) -> str | None:
        """Refuse what does not decode to whole hashes in rising order."""
        if seen is None:
            return None
        try:
            decoded = base64.b64decode(seen, validate=True)
        except ValueError as error:
            raise ValueError("is not base64") from error
        must((len(decoded) % 4 == 0, f"holds {len(decoded)} bytes, not hashes of 4 bytes each"))
        hashes = struct.unpack(f"<{len(decoded) // 4}I", decoded)
        must(
            (len(hashes) <= MOST_SEEN, f"holds {len(hashes)} hashes; at most {MOST_SEEN} are kept"),
            (all(one < other for one, other in pairwise(hashes)), "hashes are not in rising order"),
        )
        return seen


class Score(Record):
    """One criterion's verdict: a number per head, or the order in which heads go."""

    values: dict[TowerName, tuple[tuple[float, ...], ...]] | None = None
    """tower → [layer][head]; higher = keep; heads that were already gone score 0."""
    order: tuple[tuple[TowerName, Index, Index], ...] | None = None
    trace: tuple[float, ...] | None = None
    settings: Json = Field(default={})
    data: tuple[DataRecord, ...] = ()
    _silent = silent_of("values", "order", "trace")

    @model_validator(mode="after")
    def _says_something(self) -> Score:
        order, trace = len(self.order or ()), len(self.trace or ())
        must(
            (
                bool(self.values) or (self.values is None and self.order is not None),
                "a score needs values or an order",
            ),
            (self.trace is None or trace == order, f"a trace of {trace} for an order of {order}"),
        )
        return self


class Member(Record):
    """One member inside a hydra."""

    kept: dict[TowerName, Rows]
    kept_neurons: dict[TowerName, Neurons] | None = None
    """None: all."""
    sha256: Sha256
    _silent = silent_of("kept_neurons")


class Fusion(Record):
    """Record of how members were fused."""

    mlp: Literal["average", "separate"]
    norms: Literal["average", "separate"] = "separate"
    trunk: int = Field(ge=0, le=MAX_COUNT)

    _silent = silent_of("norms")

    @property
    def averaged(self) -> tuple[str, ...]:
        """Parts whose average all members run."""
        return (
            *(["MLPs"] if self.mlp == "average" else []),
            *(["norms"] if self.norms == "average" else []),
        )


class Input(Record):
    name: Text
    sha256: Sha256


class Step(Record):
    """One command that helped to make this checkpoint."""

    command: Name
    args: Json = Field(default={})
    inputs: tuple[Input, ...] = ()
    teachers: tuple[Input, ...] = ()
    """Models that it learnt from; absent without any."""
    weights: tuple[float, ...] = ()
    """Fraction of each input in the mean that it wrote; absent if all are equal."""
    output: Sha256 | None = None
    """Hash of the weights that it wrote."""
    data: tuple[DataRecord, ...] = ()
    seed: Seed | None = None
    versions: dict[Name, Name] = Field(default={})
    _silent = silent_of("output", "teachers", "weights")

    def wrote(self, sha256: str) -> Step:
        """Return the step with the hash of the weights that it wrote."""
        return self.model_copy(update={"output": sha256})


class _Manifest(Record):
    """The whole manifest; `kept` for a backbone or member, `members` and `fusion` for a hydra."""

    model_config = ConfigDict(title="Manifest")

    format: Literal["hydrasurgeon.manifest/1"] = "hydrasurgeon.manifest/1"
    kind: Literal["backbone", "member", "hydra"]
    model: Model
    towers: dict[TowerName, Tower] = Field(min_length=1)
    kept: dict[TowerName, Rows] | None = None
    kept_neurons: dict[TowerName, Neurons] | None = None
    """None: all, or a hydra."""
    scores: dict[Name, Score] = Field(default={})
    members: tuple[Member, ...] | None = Field(default=None, min_length=2, max_length=MAX_COUNT)
    fusion: Fusion | None = None
    weights_sha256: Sha256
    decision: DecisionRecord | None = None
    """Decision state from `calibrate`; absent without it."""
    history: tuple[Step, ...] = Field(default=(), max_length=MAX_COUNT)
    record_sha256: Sha256 | None = None
    """`record_hash()` as it was when the file was written; absent from files of older versions."""
    _silent = silent_of("kept", "kept_neurons", "members", "fusion", "decision")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "hydra":
            members, fusion = self.members or (), self.fusion
            complete = bool(members) and fusion is not None and self.kept is None
            must((complete, "a hydra needs members and a fusion record, and no kept heads"))
            layers, trunk = (
                next(iter(self.towers.values())).layers,
                0 if fusion is None else fusion.trunk,
            )
            must((trunk <= layers, f"a trunk of {trunk} layers, the tower has {layers}"))
            selections = [(member.kept, member.kept_neurons) for member in members]
        else:
            single = self.kept is not None and self.members is None and self.fusion is None
            must((single, f"a {self.kind} needs kept heads, and no members"))
            selections = [(self.kept or {}, self.kept_neurons)]
        for kept, neurons in selections:
            _check_kept(kept, self.towers)
            for name, rows in (neurons or {}).items():
                has = name in self.towers and len(rows) == self.towers[name].layers
                must(
                    (has, f"kept neurons for {len(rows)} layers of {name}, which the model has not")
                )
                rising = all(one < other for row in rows for one, other in pairwise(row))
                must((rising, f"{name}: kept neurons are not in rising order"))
        if self.decision is not None:
            _check_decision(self.decision, len(selections), self.model, self.history)
        cut = any(
            len(row) != self.towers[t].heads
            for t, rows in (self.kept or {}).items()
            for row in rows
        )
        complete = not cut and self.kept_neurons is None
        must((self.kind != "backbone" or complete, "a backbone keeps all its heads and neurons"))
        for name, score in self.scores.items():
            _check_score(name, score, self.towers)
        return self

    def to_json(self) -> str:
        """Return readable, stable JSON for the sidecar file, with a layer's neurons on one line."""
        text = json.dumps(self._plain(), indent=1, ensure_ascii=False, allow_nan=False)
        if self.members is None and self.kept_neurons is None:
            return text + "\n"
        return LONG_LIST.sub(lambda row: re.sub(r"\s+", " ", row[0]), text) + "\n"

    def to_header(self) -> str:
        """Return compact JSON for the safetensors header."""
        text = json.dumps(self._plain(), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        if len(text) > MAX_BYTES // 2:  # the sidecar is longer: it can be read by people
            raise ManifestError(
                f"the manifest would have {len(text):,} bytes; it may have {MAX_BYTES // 2:,}",
                hint="Its labels, scores or history are too long.",
            )
        return text

    def record_hash(self) -> str:
        """Return the sha256 of the manifest's content, independent of its layout."""
        text = json.dumps(self._unsealed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def sealed(self) -> Self:
        """Return a copy that contains its own hash."""
        return self.model_copy(update={"record_sha256": self.record_hash()})

    def _plain(self) -> dict[str, Any]:
        return {**self._unsealed(), "record_sha256": self.record_hash()}

    def _unsealed(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"record_sha256"})


class SingleManifest(_Manifest):
    """The manifest of a backbone or a member."""

    if TYPE_CHECKING:  # what `_consistent` has made sure of
        kind: Literal["backbone", "member"]
        kept: dict[TowerName, Rows]
        members: None = None
        fusion: None = None


class HydraManifest(_Manifest):
    """The manifest of a hydra."""

    @classmethod
    def of(cls, first: SingleManifest, **changes: Any) -> HydraManifest:
        """Return a hydra's manifest with the fields of its first member, but for what is a
        member's own.
        """
        not_shared = {"kind", "kept", "kept_neurons", "scores", "decision", "record_sha256"}
        return cls.model_validate(
            {**first.model_dump(exclude=not_shared), "kind": "hydra", **changes}
        )

    if TYPE_CHECKING:
        kind: Literal["hydra"]
        kept: None = None
        members: tuple[Member, ...]
        fusion: Fusion


Manifest = SingleManifest | HydraManifest
ManifestT = TypeVar("ManifestT", bound=Manifest)
"""Kind of manifest, the same for arguments and results."""


def _check_kept(kept: Mapping[str, Layers], towers: Mapping[str, Tower]) -> None:
    must(
        (
            set(kept) == set(towers),
            f"kept heads speak of towers {sorted(kept)}, the model has {sorted(towers)}",
        )
    )
    for name, rows in kept.items():
        layers, heads = towers[name].layers, towers[name].heads
        must(
            (
                len(rows) == layers,
                f"{name}: kept heads for {len(rows)} layers, the tower has {layers}",
            )
        )
        for layer, row in enumerate(rows):
            holds = list(row) == sorted(set(row)) and all(head < heads for head in row)
            must((holds, f"{name} layer {layer}: {list(row)} are not sorted heads below {heads}"))


def _check_decision(
    decision: DecisionRecord, members: int, model: Model, history: tuple[Step, ...]
) -> None:
    """Check that the state belongs to these members, and that a step records what it was fitted to."""
    standards, cascade = len(decision.ood.members), decision.cascade
    labels, words, classes = decision.labels, decision.words, model.choices
    first = words is not None and words.mode == "cascade"
    alike = labels is None or len(labels.temperatures) == len(labels.thresholds) == classes
    calibrations = [entry for entry in history if entry.command == "calibrate"]
    must(
        (
            standards in (0, members),
            f"decision: an OOD score of {standards} members, there are {members}",
        ),
        (cascade is None or members > 1 or first, "decision: a cascade, and one member alone"),
        (not first or cascade is not None, "decision: words come first, without a cascade"),
        (
            words is None or words.outputs == model.num_classes,
            f"decision: words of other than {model.num_classes} outputs",
        ),
        (
            words is None or words.tokenizer == model.preprocess.get("files_sha256"),
            "decision: words were counted by another tokenizer than the model's",
        ),
        (
            decision.joint is None or model.task == "regression",
            "decision: joint calibration is of numbers",
        ),
        (decision.counts(classes), f"decision: counts of other than {classes} classes"),
        (alike, f"decision: constants of other than {classes} labels"),
        (
            bool(calibrations) and len(calibrations[-1].inputs) == 1,
            "decision: the history has no calibrate that it comes from",
        ),
    )


def _check_score(name: str, score: Score, towers: Mapping[str, Tower]) -> None:
    """Check that a score is about heads that the model has."""
    for tower, rows in (score.values or {}).items():
        sizes = {len(row) for row in rows}
        complete = tower in towers and len(rows) == towers[tower].layers and len(sizes) == 1
        complete = complete and (name.startswith(OF_NEURONS) or sizes == {towers[tower].heads})
        must((complete, f"score {name}: {tower} has no value for every head of the model"))
    order = score.order or ()
    must((len(set(order)) == len(order), f"score {name}: the order names a head twice"))
    for tower, layer, head in order:
        exists = tower in towers and layer < towers[tower].layers and head < towers[tower].heads
        must((exists, f"score {name}: the model has no head {tower} {layer} {head}"))


def parse_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse a manifest from JSON; `where` names the source in the error."""
    raw = parse_json(text, where, most=MAX_BYTES, error=ManifestError)
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        newer = str(version).startswith("hydrasurgeon.manifest/")
        raise ManifestError(
            f"{where}: format {_shortened(repr(version))}; this version reads {FORMAT!r}",
            hint="Upgrade hydrasurgeon." if newer else None,
        )
    try:
        # From the text: in Python's own values a list could not be told from a tuple, which strict
        # types do.
        record = HydraManifest if raw.get("kind") == "hydra" else SingleManifest
        return record.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ManifestError(f"{where}: {first_mistake(error)}{calibrated_by(raw)}") from error


def first_mistake(error: ValidationError) -> str:
    """Return the first mistake and its place, in one sentence."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    at = ".".join(str(part)[:40] for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return _shortened(f"{at}: {message}" if at else message)


def _shortened(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"


def read_manifest(path: Path) -> Manifest:
    return parse_manifest(read_bytes(path, most=MAX_BYTES, error=ManifestError), str(path))


def sidecar(weights: Path) -> Path:
    """Return the path of the manifest: `X.safetensors` → `X.heads.json`."""
    return weights.with_name(weights.name.removesuffix(".safetensors") + ".heads.json")


def json_schema() -> str:
    """Return the manifest's JSON Schema."""
    return json.dumps({"$id": FORMAT, **_Manifest.model_json_schema()}, indent=1)
