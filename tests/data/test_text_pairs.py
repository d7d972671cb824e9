"""Pairs of texts, and queries that rows belong to, as tables hold them."""

from __future__ import annotations

from pathlib import Path

import pytest
from row_files import write_lines, write_rows

from hydrasurgeon.data import open_data
from hydrasurgeon.data.samples import Subset, limited
from hydrasurgeon.data.sources import in_memory
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.measuring.sets import labelled_sets
from hydrasurgeon.options.column_roles import DataSpec
from hydrasurgeon.options.measuring import EvaluateOptions


def test_samples_know_the_query_that_they_belong_to(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": i % 2, "group": i // 2} for i in range(6)]
    samples = open_data(write_lines(tmp_path / "a.jsonl", rows))
    assert samples.groups == ("0", "0", "1", "1", "2", "2")
    some = limited(samples, 3, seed=1)
    assert isinstance(some, Subset)
    assert some.groups == tuple(str(int(i) // 2) for i in some.index)
    assert in_memory("a", "text").groups is None


def test_a_row_without_its_query_is_named(tmp_path: Path) -> None:
    spec = write_lines(
        tmp_path / "a.jsonl", [{"text": "a", "group": "q1"}, {"text": "b", "group": None}]
    )
    samples = open_data(spec)
    assert samples.read(1) == "b"  # whoever needs no queries is not stopped
    with pytest.raises(DataError, match="row 1 has no group") as caught:
        _ = samples.groups
    assert "--columns group=NAME" in (caught.value.hint or "")


PAIRS = [
    {"text": "a, b", "text_pair": "c", "label": "no"},
    {"text": "d", "text_pair": "e\tf", "label": "yes"},
    {"text": "f", "text_pair": "g", "label": "no"},
]


def _as(path: Path, names: tuple[str, str, str] = ("text", "text_pair", "label")) -> str:
    """The pairs in the format that the name ends in, under these names."""
    rows = [dict(zip(names, row.values(), strict=True)) for row in PAIRS]
    return write_rows(path, rows)


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_pairs_are_the_same_in_every_format(tmp_path: Path, ending: str) -> None:
    samples = open_data(_as(tmp_path / f"a.{ending}"))
    assert [samples.read(i) for i in range(3)] == [(row["text"], row["text_pair"]) for row in PAIRS]
    assert (samples.kind, samples.inputs, samples.classes) == ("text", "text_pair", ("no", "yes"))
    assert samples.content(0) == b"a, b\0c"
    spec = _as(tmp_path / f"b.{ending}", ("premise", "hypo.thesis", "gold"))
    columns = "text=premise,text_pair=hypo.thesis,label=gold"
    (named,) = EvaluateOptions.of("m", data=spec, columns=columns).data
    assert named.endswith(f"b.{ending}#text,premise#text_pair,hypo%2Ethesis#label,gold")
    assert labelled_sets(named, None)[0].name == "b"
    renamed = open_data(named)
    assert renamed.fingerprint()["sha256"] == samples.fingerprint()["sha256"]
    with pytest.raises(UsageError, match="#l names no column"):
        DataSpec.parse("v.csv#l")
    (alone,) = EvaluateOptions.of("m", data=samples.spec, columns="text=text").data
    assert open_data(str(tmp_path / alone)).read(1) == "d"


@pytest.mark.parametrize("second", ["", None])
def test_a_pair_without_its_second_text_is_named(tmp_path: Path, second: str | None) -> None:
    rows = [{"text": "a", "text_pair": "b"}, {"text": "c", "text_pair": second}]
    samples = open_data(write_lines(tmp_path / "a.jsonl", list(rows)))
    assert samples.read(0) == ("a", "b")
    with pytest.raises(DataError, match=r"row 1 has no second text \(text_pair\)") as caught:
        samples.read(1)
    assert "--skip-bad" in (caught.value.hint or "")
