"""Data sets that are wrong in one way each, and bytes changed at random: what a reader of files must survive."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Mistake:
    """Data that cannot be used: how it is made, the exit code it ends with, and a part of what is said."""

    name: str
    make: Callable[[Path], str]
    """Writes it into a folder; the data spec."""
    says: str
    code: int = 5


def damaged(content: bytes, seed: int) -> bytes:
    """Cut, flip, double, zero or lengthen `content` in one to three places."""
    random = Random(seed)
    changed = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        length = random.choice((1, 1, 2, 4, 8, 64))
        change = random.randrange(6)
        if change == 0:
            del changed[at:]
        elif change == 1:
            changed[at : at + length] = random.randbytes(length)
        elif change == 2:
            changed[at:at] = random.randbytes(length)
        elif change == 3:
            changed[at : at + length] = bytes(length)
        elif change == 4:
            changed[at : at + length] = b"\xff" * length
        else:
            del changed[at : at + length]
    return bytes(changed)


def picture(kind: str = "png", mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Return a few bytes that claim to be a picture of any size."""
    import struct
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def npz(**arrays: Any) -> bytes:
    """Pack arrays into an archive, pickled ones too, and bytes as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            content = array
            if not isinstance(array, bytes):
                part = io.BytesIO()
                np.lib.format.write_array(part, np.asarray(array), allow_pickle=True)
                content = part.getvalue()
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def parquet(metadata: dict[bytes, bytes] | None = None, **columns: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
    return file.getvalue()


IMAGES = np.zeros((3, 8, 8), np.uint8)


def _file(name: str, content: bytes | str | Callable[[], bytes]) -> Callable[[Path], str]:
    """Return a function that writes a file. Content that takes long to make may be a function
    itself.
    """

    def make(folder: Path) -> str:
        path = folder / name
        written = content() if callable(content) else content
        path.write_bytes(
            written.encode("utf-8", "surrogatepass") if isinstance(written, str) else written
        )
        return str(path)

    return make


def _lines(*records: Any) -> Callable[[Path], str]:
    return _file("d.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def _fifo(folder: Path) -> str:
    os.mkfifo(folder / "d.npz")
    return str(folder / "d.npz")


def _equal_texts(folder: Path) -> str:
    import pyarrow as pa
    from pyarrow import parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1_000_000, np.int32)), ["x" * 1000])
    schema = pa.schema([("text", pa.large_string())])  # as polars writes it
    with pq.ParquetWriter(folder / "d.parquet", schema) as writer:
        for start in range(0, 1_000_000, 10_000):
            column = text[start : start + 10_000].cast(pa.large_string())
            writer.write_table(pa.table({"text": column}))
    return str(folder / "d.parquet")


def _surrogates(folder: Path) -> str:
    for name in (b"ok", b"\xff\xfe"):
        (folder / os.fsdecode(name)).mkdir()
        (folder / os.fsdecode(name) / "x.png").write_bytes(picture())
    return str(folder)


def _mistakes() -> Iterator[Mistake]:
    yield Mistake(
        "an npz that is a single array",
        _file("d.npz", b"\x93NUMPY\x01\x00"),
        "not a readable .npz file",
    )
    yield Mistake(
        "a pickled array of images",
        _file("d.npz", npz(images=np.array([{}, print], dtype=object))),
        "not a readable .npz file (Object arrays cannot be loaded",
    )
    yield Mistake(
        "pickled labels",
        _file("d.npz", npz(images=IMAGES, labels=np.array([1, "a", None], dtype=object))),
        "not a readable .npz file (Object arrays cannot be loaded",
    )
    yield Mistake(
        "images of floats", _file("d.npz", npz(images=IMAGES.astype("f4"))), "images must be uint8"
    )
    yield Mistake(
        "images without height",
        _file("d.npz", npz(images=np.zeros((3, 0, 8), np.uint8))),
        "8 × 0 pixels",
    )
    yield Mistake(
        "labels of floats",
        _file("d.npz", npz(images=IMAGES, labels=np.array([0.5, 1, 2]))),
        "row 0 has the label 0.5",
    )
    yield Mistake(
        "labels beyond 64 bits",
        _file("d.npz", npz(images=IMAGES, labels=np.array([0, 2**64 - 1, 2], np.uint64))),
        "row 1 has label 18446744073709551615",
    )
    yield Mistake(
        "too few labels",
        _file("d.npz", npz(images=IMAGES, labels=np.arange(2))),
        "labels must be 3 integers",
    )
    yield Mistake(
        "a class name that moves the cursor",
        _file("d.npz", npz(images=IMAGES, classes=np.array(["a", "\x1b[2J"]))),
        "is not a class name",
    )
    yield Mistake(
        "a header that lies about the size",
        _file(
            "d.npz",
            npz(
                images=b"\x93NUMPY\x01\x00v\x00"
                + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 28, 28), }".ljust(
                    117
                )
                + b"\n"
            ),
        ),
        "not a readable .npz file (",
    )
    yield Mistake(
        "an npz without images",
        _file("d.npz", npz(pixels=IMAGES)),
        "has no array 'images' (found: pixels)",
    )
    yield Mistake("a pipe", _fifo, "is not a regular file")

    yield Mistake(
        "jsonl that is not UTF-8",
        _file("d.jsonl", b'{"text": "caf\xe9", "label": 0}\n'),
        "d.jsonl, line 1: is not UTF-8 text",
    )
    yield Mistake("jsonl of lists", _lines(["a", 0]), "d.jsonl, line 1: is not a JSON object")
    yield Mistake(
        "jsonl nested beyond reason",
        _file("d.jsonl", '{"text": ' + "[" * 100_000 + "\n"),
        "nested more than",
    )
    yield Mistake(
        "a key twice", _file("d.jsonl", '{"text": "a", "label": 0, "label": 1}\n'), "occurs twice"
    )
    yield Mistake(
        "jsonl without a text",
        _lines({"words": "a", "label": 0}),
        "needs a column image or text (found: words, label)",
    )
    yield Mistake(
        "a row without a label",
        _lines({"text": "a", "label": 0}, {"text": "b"}),
        "row 1 has no label",
    )
    yield Mistake(
        "a label of a float",
        _lines({"text": "a", "label": 0}, {"text": "b", "label": 1.5}),
        "row 1 has the label 1.5",
    )
    yield Mistake(
        "a label of a list", _lines({"text": "a", "label": [0, 1]}), "row 0 has a list of labels"
    )
    yield Mistake(
        "a csv with a short line",
        _file("d.csv", "text,label\na,0\nb\n"),
        "d.csv, line 3: has 1 fields, the first line 2",
    )
    yield Mistake(
        "a csv with two columns of one name",
        _file("d.csv", "text,text\na,b\n"),
        "two columns have one name",
    )
    yield Mistake(
        "a csv with an open quote",
        _file("d.csv", 'text,label\n"a,0\nb,1\n'),
        "not a readable .csv file",
    )
    yield Mistake(
        "a csv of fractions",
        _file("d.csv", "text,label\na,0.0\nb,1.0\n"),
        "row 0 has the label 0.0",
    )

    yield Mistake(
        "bytes called parquet",
        _file("d.parquet", b"PAR1nothingPAR1"),
        "not a readable .parquet file",
    )
    yield Mistake(
        "parquet without a label",
        _file("d.parquet", parquet(text=["a", "b"], label=["x", None])),
        "row 1 has no label",
    )
    yield Mistake(
        "a description nested beyond reason",
        _file("d.parquet", parquet({b"huggingface": b"[" * 5000}, text=["a"], label=[0])),
        "its description",
    )

    yield Mistake("a folder whose name is not UTF-8", _surrogates, "is not a class name")
    yield Mistake("an empty folder", str, "holds no samples")
    yield Mistake("a name of another demo set", lambda _: "demo:tets", "did you mean demo:test?")
    yield Mistake("a name longer than names are", lambda _: "x" * 5000 + ".npz", "cannot be read")
    yield Mistake(
        "a suffix that nobody reads", _file("d.txt", "x"), "files that end in .txt are not read"
    )
    yield Mistake(
        "a packed table",
        _file("d.jsonl.gz", b"\x1f\x8b"),
        "d.jsonl.gz: compressed archives cannot be read",
    )
    yield Mistake("a sheet", _file("d.xlsx", "x"), "spreadsheets cannot be read")
    yield Mistake("blank lines", _file("d.jsonl", "\n" * 1_100_000), "lines are blank")
    yield Mistake(
        "one long text in all rows of a small parquet",
        _equal_texts,
        "unpacks to more than 67,108,864 bytes",
    )


MISTAKES = tuple(_mistakes())
