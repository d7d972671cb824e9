"""Manifests: a contradiction or a size beyond all bounds is refused where it is read, in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.manifest import Score, SingleManifest, Step, parse_manifest, read_manifest
from hydrasurgeon.files.untrusted import MAX_DEPTH, parse_json

GOLDEN = Path(__file__).parents[1] / "golden"
SHA = "0" * 64
Change = Callable[[dict[str, Any]], Any]


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.heads.json").read_text(encoding="utf-8"))


def put(*path: str | int, value: Any) -> Change:
    """A change: the value at the end of a path is replaced."""

    def change(manifest: dict[str, Any]) -> None:
        where: Any = manifest
        for key in path[:-1]:
            where = where[key]
        where[path[-1]] = value

    return change


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def seen(encoded: str) -> Change:
    """A change: data with these hashes of rows."""
    record = {"spec": "x", "rows": 1, "sha256": SHA, "seen": encoded}
    return put("history", 0, "data", value=[record])


SCORE = {"values": {"vision": [[0.5] * 8] * 6}}
MEMBER: dict[str, tuple[Change, str]] = {
    "format": (put("format", value="hydrasurgeon.manifest/2"), "format 'hydrasurgeon.manifest/2'"),
    "long format": (put("format", value="x" * 10_000), "format 'xxx"),
    "an unknown key": (put("x\x1b[2J" * 20, value=1), "Extra inputs"),
    "kind": (put("kind", value="fusion"), "kind: Input should be"),
    "kind hydra": (put("kind", value="hydra"), "a hydra needs members"),
    "a backbone without heads": (put("kind", value="backbone"), "a backbone keeps all its heads"),
    "arch with a control character": (
        put("model", "arch", value="a\x1b]52;c;x\x07"),
        "control characters",
    ),
    "config deeper": (put("model", "config", value={"a": nested(40)}), "nested more than 32"),
    "classes negative": (put("model", "num_classes", value=-1), "num_classes"),
    "classes many": (put("model", "num_classes", value=2**30), "num_classes"),
    "classes true": (put("model", "num_classes", value=True), "num_classes"),
    "labels too few": (put("model", "labels", value=["a", "b", "c"]), "3 labels for 8 classes"),
    "no towers": (put("towers", value={}), "towers"),
    "another tower": (
        put("towers", value={"sound": {"layers": 1, "heads": 1, "head_dim": 1, "dim": 1}}),
        "towers",
    ),
    "layers 1e9": (put("towers", "vision", "layers", value=10**9), "layers"),
    "heads 2**70": (put("towers", "vision", "heads", value=2**70), "heads"),
    "dim": (put("towers", "vision", "dim", value=2**21), "dim"),
    "no kept heads": (put("kept", value=None), "needs kept heads"),
    "kept of another tower": (put("kept", value={"text": [[0]] * 6}), "kept heads speak of towers"),
    "kept twice": (put("kept", "vision", 0, value=[1, 1]), "not sorted heads"),
    "kept beyond": (put("kept", "vision", 0, value=[8]), "not sorted heads below 8"),
    "members of a member": (
        put("members", value=[{"kept": {"vision": [[0]] * 6}, "sha256": SHA}] * 2),
        "no members",
    ),
    "score empty": (put("scores", value={"taylor": {}}), "values or an order"),
    "score NaN": (
        put("scores", value={"taylor": {"values": {"vision": [[float("nan")] * 8] * 6}}}),
        "NaN",
    ),
    "score of too few layers": (
        put("scores", value={"t": {"values": {"vision": [[0.5] * 8] * 5}}}),
        "no value for every head",
    ),
    "order of a head beyond": (
        put("scores", value={"c": {"order": [["vision", 0, 8]]}}),
        "has no head vision 0 8",
    ),
    "order of another tower": (
        put("scores", value={"c": {"order": [["text", 0, 0]]}}),
        "has no head text 0 0",
    ),
    "order twice": (
        put("scores", value={"c": {"order": [["vision", 0, 0]] * 2}}),
        "names a head twice",
    ),
    "trace of another length": (
        put("scores", value={"c": {"order": [["vision", 0, 0]], "trace": []}}),
        "a trace of 0",
    ),
    "score name": (put("scores", value={"a\n": SCORE}), "scores"),
    "hash short": (put("weights_sha256", value="0" * 63), "weights_sha256"),
    "history object": (put("history", value={}), "history"),
    "history endless": (put("history", value=[{"command": "x"}] * 4097), "history"),
    "command": (put("history", 0, "command", value="a\x1b[0m"), "history.0.command"),
    "seed true": (put("history", 0, "seed", value=True), "history.0.seed"),
    "input hash": (
        put("history", 0, "inputs", value=[{"name": "x", "sha256": "../x"}]),
        "history.0.inputs",
    ),
    "rows negative": (
        put("history", 0, "data", value=[{"spec": "x", "rows": -1, "sha256": SHA}]),
        "history.0.data",
    ),
    "seen of three bytes": (seen("AAAA"), "holds 3 bytes, not hashes of 4 bytes each"),
    "seen of two bytes": (seen("AAA="), "holds 2 bytes"),
    "seen of five letters": (seen("AAAAA"), "is not base64"),
    "seen twice": (seen("AQAAAAEAAAA="), "not in rising order"),
    "seen falling": (seen("AgAAAAEAAAA="), "not in rising order"),
}

HYDRA: dict[str, tuple[Change, str]] = {
    "one member": (lambda m: m["members"].__delitem__(slice(1, None)), "members"),
    "no members": (put("members", value=None), "a hydra needs members"),
    "no fusion": (put("fusion", value=None), "a hydra needs members"),
    "kept heads": (lambda m: m.update(kept=m["members"][0]["kept"]), "no kept heads"),
    "trunk beyond": (put("fusion", "trunk", value=7), "a trunk of 7 layers"),
    "mlp": (put("fusion", "mlp", value="sum"), "fusion.mlp"),
    "members many": (lambda m: m.update(members=m["members"] * 2000), "members"),
    "a member's hash": (put("members", 0, "sha256", value=""), "members.0.sha256"),
}


def refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message) as error:
        parse_manifest(text, "x.heads.json")
    assert error.value.message.startswith("x.heads.json: ")
    assert len(error.value.message) < 500


@pytest.mark.parametrize("what", MEMBER)
def test_hostile_members(what: str) -> None:
    change, message = MEMBER[what]
    manifest = golden("member")
    change(manifest)
    refused(json.dumps(manifest), message)


@pytest.mark.parametrize("what", HYDRA)
def test_hostile_hydras(what: str) -> None:
    change, message = HYDRA[what]
    manifest = golden("hydra")
    change(manifest)
    refused(json.dumps(manifest), message)


MEMBER_TEXT = (GOLDEN / "member.heads.json").read_bytes()
TEXTS = {
    "nothing": (b"", "is empty"),
    "null": (b"null", "format None"),
    "half": (MEMBER_TEXT[:-20], "not JSON"),
    "UTF-16": (MEMBER_TEXT.decode().encode("utf-16"), "not UTF-8"),
    "a key twice": (MEMBER_TEXT.replace(b'"kind"', b'"kind": "hydra", "kind"'), "occurs twice"),
    "deep": (b"[" * 100_000, "nested more than 32"),
    "large": (b'"' + b" " * (17 << 20) + b'"', "is too large"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_hostile_texts(what: str) -> None:
    refused(*TEXTS[what])


def test_scores_and_orders_that_fit() -> None:
    manifest = golden("member")
    manifest["scores"] = {"t": SCORE, "c": {"order": [["vision", 5, 7]], "trace": [0.25]}}
    assert parse_manifest(json.dumps(manifest), "x").scores["c"].order == (("vision", 5, 7),)


def test_hashes_of_rows_that_rise() -> None:
    """The little-endian numbers 1 and 256: not in the order of their bytes."""
    manifest = golden("member")
    seen("AQAAAAABAAA=")(manifest)
    (record,) = parse_manifest(json.dumps(manifest), "x").history[0].data
    assert record.seen == "AQAAAAABAAA="


def test_what_cannot_be_read_again_is_not_written() -> None:
    with pytest.raises(ValidationError, match="finite"):
        Score(values={"vision": ((float("nan"),),)})
    with pytest.raises(ValidationError, match="not JSON"):
        Step(command="score", args={"a": [float("nan")]})
    with pytest.raises(ValidationError, match="not JSON"):
        Step(command="score", args={"a": Path("x")})
    manifest = golden("member")
    manifest["model"]["config"] = {"a": "x" * (17 << 20)}
    with pytest.raises(ManifestError, match="may have"):
        SingleManifest.model_validate(manifest).to_header()


def test_a_sidecar_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="not a regular file"):
        read_manifest(tmp_path)
    large = tmp_path / "large.heads.json"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ManifestError, match="is too large"):
        read_manifest(large)


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_brackets_in_texts_are_no_nesting(depth: int) -> None:
    text = json.dumps({"a": '[{"' * 1000, "b\\": nested(depth - 1)})
    if depth > MAX_DEPTH:
        with pytest.raises(ManifestError, match="nested"):
            parse_json(text, "x", most=10_000, error=ManifestError)
    else:
        assert parse_json(text, "x", most=10_000) == json.loads(text)
