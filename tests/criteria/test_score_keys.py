"""Names of scores in manifests."""

from __future__ import annotations

import pytest

from hydrasurgeon.criteria import ScoreKey, score_key
from hydrasurgeon.errors import UsageError


def test_keys() -> None:
    assert str(score_key("circuit")) == "circuit-avg"
    assert score_key("circuit", "ood") == score_key("circuit-ood") == ScoreKey("circuit", "ood")
    assert score_key("circuit", recorded=("circuit-ood", "taylor")) == ScoreKey("circuit", "ood")
    with pytest.raises(UsageError, match="circuit-acc and circuit-ood"):
        score_key("circuit", recorded=("circuit-ood", "circuit-acc"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("circuit-acc", ScoreKey("circuit", "acc")),
        ("neurons-magnitude", ScoreKey("magnitude", part="neurons")),
        ("my-own", ScoreKey("my-own")),
    ],
)
def test_a_key_and_its_text(text: str, key: ScoreKey) -> None:
    assert ScoreKey.parse(text) == key
    assert str(key) == text
    method, *objective = key.words  # what is printed to be typed
    assert score_key(method, *objective[1:]) == key
