"""Single models run as hydras run their members: the same logits as their library's, for fewer multiply-adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES, LAYERS, Family, thoroughly

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import as_classifier


@pytest.mark.parametrize("last", [[0, 2, 3], []], ids=["heads", "no heads"])
@pytest.mark.parametrize("family", thoroughly())
def test_the_same_as_the_library(family: Family, last: list[int], tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    (tmp_path / "mask.json").write_text(
        json.dumps(family.in_each_tower([[0, 1], *[[1, 2, 3]] * (LAYERS - 2), last]))
    )
    member = hs.prune(
        tmp_path / "source", mask=tmp_path / "mask.json", out=tmp_path / "m.safetensors"
    )
    opened = open_checkpoint(member.path)
    whole = as_classifier(opened, device="cpu", dtype="float64")
    lean = as_classifier(opened, device="cpu", dtype="float64", lean=True)
    inputs = family.inputs(dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(lean(inputs), whole(inputs), rtol=0, atol=1e-11)
    if whole.anatomy.reads is None:  # the classifier reads all tokens
        assert macs(lean, inputs) == macs(whole, inputs)
    else:
        assert macs(lean, inputs) < macs(whole, inputs)


def test_texts_are_counted_without_padding(tmp_path: Path) -> None:
    """The first text alone, whatever stands beside it in a batch."""
    FAMILIES["BERT"].write(tmp_path / "source")
    first = '{"text": "good film", "label": 0}\n'
    found = []
    for words in ("bad", "bad " * 15):
        (tmp_path / "data.jsonl").write_text(f'{first}{{"text": "{words}", "label": 1}}\n')
        cost = (
            hs.evaluate([tmp_path / "source"], data=str(tmp_path / "data.jsonl"))
            .report.results[0]
            .cost
        )
        assert cost is not None
        found.append(cost.macs)
    tokens, dim, mlp = 4, 32, 48  # with [CLS] and [SEP]
    whole = tokens * (4 * dim**2 + 2 * dim * mlp) + 2 * tokens**2 * dim
    last = tokens * 2 * dim**2 + 2 * dim**2 + 2 * dim * mlp + 2 * tokens * dim
    assert found == [(LAYERS - 1) * whole + last + dim**2 + 3 * dim] * 2
