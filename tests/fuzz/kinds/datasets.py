"""Data sets: arrays, tables, lists and folders whose parts do not fit, do not end, or are not what they say."""

from __future__ import annotations

import csv
import io
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.bases import Bases
from fuzz.guard import Attempt, Fifo, Link
from fuzz.hostile import NUMBERS, damaged, mutated, scalar, text, to_json, value

EXITS = {0, 5}


def make(random: Random, bases: Bases) -> Attempt:
    name, files = random.choice(WAYS)(random)
    seed = random.randrange(100)
    command = _command(random, name, bases)
    return Attempt(files, lambda folder, out: use(folder / name, seed), command, reads=True)


def _command(random: Random, name: str, bases: Bases) -> tuple[str, ...]:
    import hydrasurgeon

    image = str(Path(hydrasurgeon.__file__).parent / "demo" / "backbone.safetensors")
    text = ".jsonl" in name or ".csv" in name
    if text and "BERT" in (bases.families or ("BERT",)):
        image = random.choice((image, str(bases.directory("BERT"))))
    more = random.choice(((), ("--limit", "1"), ("--ood", "{}/" + name), ("--skip-bad",)))
    return ("eval", image, "--data", "{}/" + name, "--device", "cpu", "--quiet", "--json", "-", *more)


def use(path: Path, seed: int) -> None:
    """Opened, counted, hashed, and a few samples of it read and shaped for a model."""
    from hydrasurgeon.data import fit_classes, open_data
    from hydrasurgeon.data.pairs import open_pairs
    from hydrasurgeon.files.manifest import Model

    samples = (open_pairs if path.suffix == ".tar" else open_data)(str(path), limit=4, seed=seed)
    samples.fingerprint()
    for i in range(len(samples)):
        samples.read(i)
    if samples.labels is not None:
        fit_classes(samples, Model(family="timm", arch="vit", num_classes=3, labels=("a", "b", "c")))


@cache
def _png(edge: int = 8) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (edge, edge), (200, 10, 10)).save(file, "png")
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def _name(random: Random) -> str:
    """One that a ZIP archive can have: it ends at a NUL, and may not be empty."""
    return text(random).replace("\ud800", "?").partition("\0")[0] or "x"


def _npz(random: Random) -> tuple[str, dict[str, Any]]:
    """An archive whose arrays have any dtype and shape, or headers that say so."""
    rows = random.choice((0, 1, 3, 5))
    images = np.zeros(
        random.choice(
            (
                (rows, 8, 8),
                (rows, 8, 8, 3),
                (rows, 8, 8, 1),
                (rows, 8, 8, 2),
                (rows, 0, 0),
                (rows,),
                (8, 8),
                (rows, 8, 8, 3, 1),
                (rows, 1, 5000),
                (rows, 8, 0, 3),
            )
        ),
        dtype=np.uint8,
    )
    labels: Any = np.arange(rows) % 3
    arrays: dict[str, bytes] = {}
    what = random.randrange(8)
    if what == 0:
        images = images.astype(random.choice(("f4", "i8", "u2", "?", "S3", "U4", "c8", "M8[s]", "V4")))
    elif what == 1:
        labels = random.choice(
            (
                np.arange(rows + 1),
                labels.astype("f8"),
                labels.astype("u8") + 2**63,
                -labels - 5,
                labels.astype("U2"),
                labels[:, None],
                labels.astype("?"),
                np.full(rows, 2**62),
                np.array(3),
                labels.astype("m8[s]"),
            )
        )
    elif what == 2:
        arrays["classes"] = _npy(
            random.choice(
                (
                    np.array(["a", "b", "c"]),
                    np.array(["a", "a"]),
                    np.array(3),
                    np.zeros((2, 2)),
                    np.array(["\x1b[2J", "b", "c"]),
                    np.array([b"a", b"\xff"]),
                    np.array([[["a"]]]),
                    np.array([], dtype="U1"),
                )
            )
        )
    elif what == 3:
        arrays[random.choice(("images", "labels", "classes"))] = _npy(np.array([{"a": 1}, print], dtype=object))
    arrays = {"images": _npy(images), "labels": _npy(labels), **arrays}
    if random.random() < 0.1:
        del arrays[random.choice(list(arrays))]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in arrays.items():
            archive.writestr(random.choice((f"{name}.npy",) * 12 + (name, f"../{name}.npy", _name(random))), content)
        if random.random() < 0.05:
            archive.writestr("images.npy", b"twice") if "images.npy" not in archive.namelist() else None
    content = file.getvalue()
    if random.random() < 0.25:
        content = damaged(content, random)
    return "d.npz", {"d.npz": content}


def _rows(random: Random) -> list[dict[str, Any]]:
    """A table of a few rows, as they should be."""
    if random.random() < 0.5:
        return [{"text": f"word {i}", "label": i % 3} for i in range(random.choice((0, 1, 3, 6)))]
    return [{"image": f"i{i}.png", "label": "abc"[i % 3]} for i in range(random.choice((1, 3)))]


def _changed_rows(random: Random) -> list[Any]:
    rows: Any = mutated(_rows(random), random) if random.random() < 0.8 else _rows(random)
    if not isinstance(rows, list):
        rows = [rows]
    if rows and random.random() < 0.3:
        column = random.choice(("text", "image", "label", "labels", "img", "sentence", "fine_label"))
        for row in rows:
            if isinstance(row, dict):
                row[column] = random.choice(
                    (
                        scalar(random),
                        value(random),
                        text(random),
                        {"bytes": "x", "path": text(random)},
                        "/etc/hostname",
                        "/dev/zero",
                        "../outside.json",
                    )
                )
    return rows


def _images() -> dict[str, Any]:
    return {f"i{i}.png": _png() for i in range(3)}


def _jsonl(random: Random) -> tuple[str, dict[str, Any]]:
    rows = _changed_rows(random)
    content = "".join(to_json(row) + random.choice(("\n", "\n", "\n", "\r\n", "\n\n", "")) for row in rows).encode(
        "utf-8", "surrogatepass"
    )
    if random.random() < 0.2:
        content = damaged(content, random)
    return "d.jsonl", {"d.jsonl": content, **_images()}


def _csv(random: Random) -> tuple[str, dict[str, Any]]:
    rows = [row for row in _changed_rows(random) if isinstance(row, dict)]
    file = io.StringIO()
    names = list(dict.fromkeys(str(name) for row in rows for name in row)) or ["text"]
    writer = csv.writer(file, delimiter=random.choice((",",) * 8 + (";", "\t")))
    writer.writerow(names * random.choice((1,) * 9 + (2,)))
    for row in rows:
        cells = [row.get(name, "") for name in names]
        writer.writerow(
            [cell if isinstance(cell, str) else to_json(cell) for cell in cells][: random.choice((99, 99, 99, 1))]
        )
    content = file.getvalue().encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        content = content.replace(b"\r\n", random.choice((b"\r", b"\n", b'"\r\n')))
    if random.random() < 0.2:
        content = damaged(content, random)
    return "d.csv", {"d.csv": content, **_images()}


@cache
def _tables() -> tuple[bytes, ...]:
    """Parquet files of every column that we know, and of some that nobody should."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    picture = {"bytes": _png(), "path": "i0.png"}
    tables = [
        {"image": [picture] * 3, "label": [0, 1, 2]},
        {"text": ["a", "b", None], "label": [0, 1, 2]},
        {"text": ["a", "b"], "label": ["x", None]},
        {"img": [_png()] * 2, "labels": [2**62, -5]},
        {"image": [b"EPS"] * 2, "label": [0.5, 1.0]},
        {"text": [1, 2], "label": [True, False]},
        {"text": [["a"], ["b"]], "label": [[0], [1]]},
        {"image": [{"bytes": None, "path": "/etc/hostname"}], "label": [0]},
        {"sentence": ["a"] * 4, "fine_label": [0] * 4},
        {"image": [{"x": 1}], "label": [0]},
        {"image": [[[1, 2], [3, 4]]], "label": [0]},
        {"text": ["x" * 100_000], "label": [-1]},
        {"text": [], "label": []},
        {"image": ["/dev/zero"], "label": [0]},
        {"image": ["../outside.json"], "label": [0]},
        {"text": [b"\xff\xfe"], "label": [0]},
    ]
    made = []
    for columns in tables:
        table = pa.table(columns)
        for metadata in (
            None,
            {b"huggingface": b'{"info": {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}}'},
            {b"huggingface": b"[" * 5000},
            {b"huggingface": b'{"info": {"features": {"image": {"_type": "os.system"}}}}'},
        ):
            file = io.BytesIO()
            pq.write_table(table.replace_schema_metadata(metadata), file)
            made.append(file.getvalue())
    return tuple(made)


def _parquet(random: Random) -> tuple[str, dict[str, Any]]:
    content = random.choice(_tables())
    what = random.random()
    if what < 0.4:
        changed = bytearray(content)
        for _ in range(random.choice((1, 2, 8))):
            at = random.randrange(len(changed))
            if random.random() < 0.7:  # the footer says where everything is
                at = len(changed) - 1 - random.randrange(min(len(changed), 600))
            changed[at] = random.randrange(256)
        content = bytes(changed)
    elif what < 0.5:
        content = damaged(content, random)
    return "d.parquet", {"d.parquet": content, **_images()}


def _list(random: Random) -> tuple[str, dict[str, Any]]:
    lines = [f"i{i % 3}.png {i % 3}" for i in range(random.choice((1, 3, 6)))]
    for _ in range(random.choice((0, 1, 2))):
        name = random.choice(
            (text(random), "i0.png", "/etc/hostname", "/dev/zero", "../outside.json", "sub/../i0.png", "pipe.png")
        )
        label = random.choice((*map(str, NUMBERS[:15]), "--5", "-", "²", "١", "1_0", "+1", "0x1", "9" * 5000, "-1", ""))
        lines.insert(
            random.randrange(len(lines) + 1), f"{name}{random.choice((' ', '  ', chr(9), chr(0xA0), ''))}{label}"
        )
    content = random.choice(("\n", "\n", "\r\n", "\x0b", "\x85", "\u2028")).join(lines).encode("utf-8", "surrogatepass")
    if random.random() < 0.2:
        content = damaged(content, random)
    return "d.txt", {"d.txt": content, **_images()}


def _folder(random: Random) -> tuple[str, dict[str, Any]]:
    """Class folders with what does not belong there."""
    files: dict[str, Any] = {f"d/{label}/i.png": _png() for label in "abc"[: random.choice((0, 1, 3))]}
    for _ in range(random.choice((0, 1, 2, 3))):
        inside = random.choice(
            (
                "d/",
                "d/a/",
                "d/.hidden/",
                "d/a/deep/er/",
                f"d/{random.choice(('[red]', chr(27) + '[2J', 'é', 'x' * 200, ' '))}/",
            )
        )
        name = random.choice(("x.png", "x.PNG", "x.jpg", "x.txt", ".png", "x.gif", f"{'y' * 200}.png"))
        links = map(Link, ("/etc/hostname", "..", "nowhere", "/dev/zero", ".", "/"))
        files[inside + name] = random.choice((_png(), b"", damaged(_png(), random), Fifo(), *links))
    if random.random() < 0.1:
        files.pop("d/x.png", None)
        files["d/x.png/"] = b""
    if not files:
        files["d/"] = b""
    return "d", files


def _tar(random: Random) -> tuple[str, dict[str, Any]]:
    """Shards of image–text pairs."""
    import tarfile

    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
        for i in range(random.choice((0, 1, 3))):
            for ending, content in (("png", _png()), ("txt", b"a cat"), ("json", b"{}")):
                info = tarfile.TarInfo(
                    random.choice((f"{i}.{ending}",) * 8 + (f"../{i}.{ending}", f"/{i}.{ending}", f"{i}", f".{ending}"))
                )
                info.size = len(content)
                if random.random() < 0.05:
                    info.type, info.linkname = (
                        random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)),
                        "/etc/hostname",
                    )
                    info.size = 0
                    tar.addfile(info)
                else:
                    tar.addfile(info, io.BytesIO(random.choice((content,) * 9 + (b"\xff" * len(content),))))
    content = bytearray(file.getvalue())
    if random.random() < 0.5 and len(content) > 512:
        header = 512 * random.randrange(min(12, len(content) // 512))
        field = random.choice(((124, 12), (156, 1), (0, 100), (148, 8), (345, 155)))
        filler = random.choice(
            (b"7" * 11 + b"\0", b"\x80" + b"\xff" * 11, b"-0000000001\0", b"\0" * 12, b"x", b"L", b"S")
        )
        content[header + field[0] : header + field[0] + min(len(filler), field[1])] = filler[: field[1]]
        total = sum(content[header : header + 148]) + 8 * 32 + sum(content[header + 156 : header + 512])
        content[header + 148 : header + 156] = b"%06o\0 " % total
    done = bytes(content)
    return "d.tar", {"d.tar": damaged(done, random) if random.random() < 0.2 else done}


WAYS = (_npz, _npz, _npz, _npz, _list, _list, _folder, _folder, _tar, _jsonl, _csv, _parquet)
