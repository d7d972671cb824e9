"""Model cards are Markdown and YAML: names from files are text in them, and open no heading, link, tag, cell or key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from hydrasurgeon.checkpoints.card import BEGIN, END, model_card
from hydrasurgeon.files.decided import Decision
from hydrasurgeon.files.manifest import DataRecord, Input, Model, Score, SingleManifest, Step, Tower
from hydrasurgeon.measuring.results import Result
from hydrasurgeon.sharing.measured_card import with_measured

NAMES = [
    "plain",
    "a|b|c",
    "x\n# Heading\n\n---\nlicense: evil\n---\n",
    "<script>alert(1)</script>",
    "[click](https://evil.example) ![x](https://evil.example/x.png) <https://evil.example>",
    "`code` ``more`` *em* \\`",
    "`",
    f"{END}\n{BEGIN}\n<!-- -->",
    "quote \" and ' : {[&anchor *alias !!python/object:os.system",
    "\x1b]52;c;aGk=\x07\u202e\u2028\x85\U0001f600\ud800",
    "",
]
FIGURES = {"accuracy": 0.9, "brier": 0.1, "nll": 0.2, "ece": 0.01, "aece": 0.02}
DECISION = Decision.model_validate(
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


def measured(text: str, name: str) -> str:
    foreign: dict[str, Any] = {"auroc": 0.9, "fpr95": 0.1, "aupr": 0.8, "aupr_id": 0.7}
    result = Result.model_validate(
        {
            "name": name,
            "kind": "member",
            "members": 1,
            "id": {"n": 3, **FIGURES},
            "ood": [{"name": name, "group": "far", "n": 3, **foreign}],
            "ood_average": {"far": foreign, "all": foreign},
            "shift": [{"name": name, "severity": 1, "accuracy": 0.5, "brier": 0.5}],
            "diversity": {"mi": 0.0, "disagreement": 0.0},
            "cost": None,
            "sets": [{"name": each, "n": 3, **FIGURES} for each in (name, "b")],
            "sets_average": FIGURES,
        }
    )
    settings = {
        "temperature": "1",
        "ood_score": "msp",
        "limit": None,
        "seed": 0,
        "dtype": "float32",
    }
    return with_measured(
        text,
        result,
        {"in distribution": DataRecord.model_construct(spec=name, rows=3, sha256="0")},
        settings,
    )


def parsed(text: str) -> list[Any]:
    body = text.split("\n---\n", 1)[1]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    return [*tokens, *(child for token in tokens for child in token.children or ())]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_changes_no_structure(name: str) -> None:
    first, plain = measured(card(name), name), measured(card("plain"), "plain")
    for text, other in ((card(name), card("plain")), (first, plain)):
        assert [t.type for t in parsed(text) if t.type != "text"] == [
            t.type for t in parsed(other) if t.type != "text"
        ]
        html = [t.content.strip() for t in parsed(text) if t.type.startswith("html")]
        assert html == [t.content.strip() for t in parsed(other) if t.type.startswith("html")]
        assert not [t for t in parsed(text) if t.type in ("link_open", "image")]
        lines = text.split("\n")
        assert lines.count(BEGIN) == lines.count(END) == 1
        assert all(line.isprintable() for line in lines)
    assert measured(first, name) == first  # found again between its markers


def test_what_is_written_below_the_section_stays() -> None:
    """With a copy of the section, as someone keeps an older result."""
    first = measured(card("plain"), "plain")
    mine = f"{first}\n## Mine\n\n{BEGIN}\nolder\n{END}\n"
    assert measured(mine, "plain") == mine
    assert measured(f"{END}\n\n{first}", "plain").endswith(first.partition("---\n\n")[2])


@pytest.mark.parametrize("name", NAMES)
def test_the_front_matter_is_yaml_with_our_keys(name: str) -> None:
    text = measured(card(name), name)
    front = yaml.safe_load(text.split("---\n")[1])
    assert set(front) == {"library_name", "pipeline_tag", "tags", "model-index"}
    read = ModelCard(text).data.eval_results
    assert read is not None
    assert {e.metric_type: e.metric_value for e in read} == FIGURES
    assert front["model-index"][0]["name"].isprintable()
