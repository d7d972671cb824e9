"""Data behind URLs reads as the same files do here; what goes wrong there is one message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import known_implementations

from hydrasurgeon.data import open_data
from hydrasurgeon.errors import DataError, MissingDependency
from hydrasurgeon.files.untrusted import portable

ROWS = {"text": [f"text {i}" for i in range(12)], "label": [f"class {i % 3}" for i in range(12)]}


@pytest.fixture
def memory() -> Iterator[Any]:
    """The file system `memory://`, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def parquet(rows: dict[str, list[Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(rows), sink)
    return sink.getvalue().to_pybytes()


def jsonl(rows: dict[str, list[Any]]) -> bytes:
    records = (dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True))
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def csv(rows: dict[str, list[Any]]) -> bytes:
    lines = [",".join(rows), *map(",".join, zip(*rows.values(), strict=True))]
    return "\n".join(lines).encode()


FORMS = {
    "a.parquet": parquet(ROWS),
    "a.jsonl": jsonl(ROWS),
    "a.csv": csv(ROWS),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_remote_table_is_the_local_one(
    name: str, scheme: str, memory: Any, tmp_path: Path
) -> None:
    here = tmp_path / name
    here.write_bytes(FORMS[name])
    memory.pipe(f"/data/{name}", FORMS[name])
    url = f"memory://data/{name}" if scheme == "memory" else here.as_uri()
    remote, local = open_data(url, limit=7, seed=1), open_data(str(here), limit=7, seed=1)
    assert [remote.read(i) for i in range(7)] == [local.read(i) for i in range(7)]
    assert remote.fingerprint()["sha256"] == local.fingerprint()["sha256"]
    assert open_data(f"{url}#text,label").read(0) == "class 0"


def test_patterns_and_folders_are_all_their_files(memory: Any) -> None:
    for part in range(3):
        rows = {name: values[4 * part : 4 * part + 4] for name, values in ROWS.items()}
        memory.pipe(f"/set/day={part}/part.parquet", parquet(rows))
    memory.pipe("/set/README.md", b"no data")
    for url in ("memory://set/", "memory://set", "memory://set/day=*/part.parquet"):
        samples = open_data(url)
        assert [samples.read(i) for i in range(len(samples))] == ROWS["text"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://none.parquet", "memory://none.parquet: no such data"),
        ("memory://set/*.parquet", "no such data"),
        ("memory://picture.png", "picture.png is not a table"),
        ("memory://damaged.parquet", "not a readable .parquet file"),
        ("zzz://a/b.parquet", "cannot be reached .*zzz"),
        ("http://127.0.0.1:9/a.parquet", "cannot be"),
    ],
)
def test_what_is_not_there_is_one_message(memory: Any, url: str, message: str) -> None:
    memory.pipe("/picture.png", b"x")
    memory.pipe("/damaged.parquet", b"PAR1 and more")
    if url.startswith("http"):
        pytest.importorskip("aiohttp")
    with pytest.raises(DataError, match=message):
        open_data(url)


def test_a_file_system_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        known_implementations,
        "s3",
        {"class": "not_there.S3", "err": "Install s3fs to access S3"},
    )
    with pytest.raises(MissingDependency, match="s3:// needs s3fs") as caught:
        open_data("s3://bucket/a.parquet")
    assert caught.value.exit_code == 6


def test_a_remote_table_cannot_name_files_of_its_reader(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/a.jsonl", jsonl({"image": [str(tmp_path / "secret.png")]}))
    with pytest.raises(DataError, match="its column image holds paths"):
        open_data("memory://a.jsonl")


def test_records_hold_no_passwords() -> None:
    assert portable("ftp://me:secret@host/a.csv") == "ftp://host/a.csv"
    signed = "https://b.example/a.parquet?X-Signature=secret#text,question"
    assert portable(signed) == "https://b.example/a.parquet#text,question"
    assert portable("s3://bucket/part-?.parquet") == "s3://bucket/part-?.parquet"
