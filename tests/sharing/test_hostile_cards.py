"""Model cards are Markdown and YAML: names from files are text in them, and open no heading, link, tag, cell or key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from hydrasurgeon.checkpoints.card import model_card
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.manifest import DataRecord, Input, Model, Score, SingleManifest, Step, Tower

NAMES = [
    "plain",
    "a|b|c",
    "x\n# Heading\n\n---\nlicense: evil\n---\n",
    "<script>alert(1)</script>",
    "[click](https://evil.example) ![x](https://evil.example/x.png) <https://evil.example>",
    "`code` ``more`` *em* \\`",
    "`",
    "<!-- -->",
    "quote \" and ' : {[&anchor *alias !!python/object:os.system",
    "\x1b]52;c;aGk=\x07\u202e\u2028\x85\U0001f600\ud800",
    "",
]
DECISION = DecisionRecord.model_validate(
    {
        "temperature": 1.5,
        "ood": {
            "score": "msp",
            "threshold": 0.5,
            "id_flagged": 0.05,
            "chosen_by": "ood",
            "auroc": {"<b>": 0.5},
        },
        "conformal": {"method": "lac", "coverage": 0.9, "threshold": 0.5},
        "nll": {"# h": 1.0},
        "fitted": 20,
        "certified": 20,
    }
)
USAGE = ("timm", "image-classification", "import timm")


# The boundary refuses most of these names; cards do not rely on that.
def card(name: str) -> str:
    data = DataRecord.model_construct(spec=name, rows=3, sha256=name)
    manifest = SingleManifest.model_construct(
        kind="member",
        model=Model.model_construct(family="timm", arch=name, num_classes=2, labels=(name, "b")),
        towers={name: Tower.model_construct(layers=1, heads=2, head_dim=4, dim=8)},
        kept={name: ((0,),)},
        scores={name: Score.model_construct(order=((name, 0, 1),), trace=(0.5,), data=(data,))},
        weights_sha256="0" * 64,
        history=(
            Step.model_construct(
                command=name,
                args={"key": name},
                inputs=(Input.model_construct(name=name, sha256=name),),
                data=(data,),
            ),
            Step.model_construct(
                command="calibrate",
                args={"data": name, "ood": [name]},
                inputs=(),
                data=(data, data),
            ),
        ),
        decision=DECISION,
    )
    return model_card(manifest, USAGE)


def parsed(text: str) -> list[Any]:
    body = text.split("\n---\n", 1)[1]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_changes_no_structure(name: str) -> None:
    text, other = card(name), card("plain")
    assert [t.type for t in parsed(text) if t.type != "text"] == [
        t.type for t in parsed(other) if t.type != "text"
    ]
    assert not [t for t in parsed(text) if t.type.startswith("html")]
    assert not [t for t in parsed(text) if t.type in ("link_open", "image")]
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NAMES)
def test_the_front_matter_is_yaml_with_our_keys(name: str) -> None:
    front = yaml.safe_load(card(name).split("---\n")[1])
    assert set(front) == {"library_name", "pipeline_tag", "tags"}
