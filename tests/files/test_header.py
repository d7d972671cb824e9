"""Safetensors headers: what the format does not allow is refused in one sentence that names the file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.header import MAX_HEADER, MAX_TENSORS
from hydrasurgeon.files.tensors import TensorFile, Tensors, digest

TWO = {
    "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    "b": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
}
DATA = bytes(range(12))


def header(entries: Any) -> bytes:
    return entries if isinstance(entries, bytes) else json.dumps(entries).encode()


def written(path: Path, entries: Any, data: bytes = DATA) -> Path:
    text = header(entries)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_a_header_as_it_should_be(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"x": "y"}, **TWO}).encode() + b"   "
    file = TensorFile(written(tmp_path / "x.safetensors", text))
    assert file.metadata == {"x": "y"}
    assert file.read("a").view("u1").tobytes() == DATA[:8]
    assert file.read("b").tolist() == list(DATA[8:])
    assert [len(block) for block in file.blocks("b", most=3)] == [3, 1]


def changed(name: str, **changes: Any) -> dict[str, Any]:
    return {**TWO, name: {**TWO[name], **changes}}


HOSTILE: dict[str, tuple[Any, str]] = {
    "empty": (b"", "no header where one must be"),
    "leading space": (b" " + json.dumps(TWO).encode(), "no header where one must be"),
    "UTF-16 without a mark": (json.dumps(TWO).encode("utf-16-le"), "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', "not UTF-8"),
    "no JSON": (b"{", "not JSON"),
    "deep arrays": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested more than 32 deep"),
    "a text of escaped quotes that does not end": (b'{"a": "' + b'\\"' * 1_000_000, "not JSON"),
    "a key twice": (b'{"a":1,"a":2}', "the key 'a' occurs twice"),
    "NaN": (b'{"a":NaN}', "NaN is not a finite number"),
    "a long number": (b'{"a":' + b"9" * 10_000 + b"}", "not JSON"),
    "a huge float": (b'{"a":1e999}', "not a finite number"),
    "a lone surrogate": (b'{"\\ud800":1}', "lone surrogate"),
    "a number as tensor": ({"a": 1}, "does not have dtype, shape and data_offsets"),
    "a tensor with more": (changed("a", more=1), "does not have"),
    "metadata numbers": ({"__metadata__": {"a": 1}, **TWO}, "not a JSON object of texts"),
    "metadata name": ({"__metadata__": {"a\n": "b"}, **TWO}, "not a name"),
    "dtype unknown": (changed("a", dtype="F33"), "not supported"),
    "shape true": (changed("a", shape=[2, True]), "no shape"),
    "shape negative": (changed("a", shape=[-2, -1]), "no shape"),
    "rank": (changed("a", shape=[2, *[1] * 16]), "no shape of at most 16"),
    "empty but vast": (changed("b", shape=[0, 2**62]), "no shape of at most 16"),
    "offsets falling": (changed("a", data_offsets=[8, 0]), "data_offsets do not fit"),
    "offsets true": (changed("a", data_offsets=[False, 8]), "data_offsets do not fit"),
    "another size": (changed("a", shape=[3, 1]), "data_offsets do not fit"),
    "an overlap": (changed("b", data_offsets=[4, 8]), "overlaps the one before"),
    "a hole": ({"b": TWO["b"]}, "has a gap before it"),
    "bytes that belong to none": ({"a": TWO["a"]}, "4 bytes behind the last tensor"),
    "beyond the end": (changed("b", shape=[5], data_offsets=[8, 13]), "beyond the end"),
    "offsets beyond 64 bits": (changed("b", data_offsets=[2**64, 2**64 + 4]), "beyond the end"),
    "no name": ({"": TWO["a"]}, "not a name"),
    "a long name": ({"x" * 513: TWO["a"]}, "not a name"),
    "a NUL in a name": ({"a\0F32": TWO["a"]}, "not a name"),
    "a right-to-left name": ({"a\u202eb": TWO["a"]}, "not a name"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers(tmp_path: Path, what: str) -> None:
    entries, message = HOSTILE[what]
    path = written(tmp_path / "x.safetensors", entries)
    with pytest.raises(CheckpointError, match=message) as refused:
        TensorFile(path)
    assert refused.value.message.startswith(str(path))
    assert len(refused.value.message) < len(str(path)) + 200
    assert refused.value.message.isprintable()


def test_more_tensors_than_any_model_has(tmp_path: Path) -> None:
    """Refused while the header is read, however many follow."""
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    most = {f"t{at}": empty for at in range(MAX_TENSORS)}
    assert len(TensorFile(written(tmp_path / "x.safetensors", most, b"")).infos) == MAX_TENSORS
    more = written(tmp_path / "y.safetensors", {**most, "a": empty, "b": empty, "c": empty}, b"")
    with pytest.raises(CheckpointError, match=r"y\.safetensors .*is too large; at most 100,002"):
        TensorFile(more)


LENGTHS = {
    "nothing": b"",
    "seven bytes": b"\2\0\0\0\0\0\0",
    "more than there is": struct.pack("<Q", 1000) + b"{}",
    "more than allowed": struct.pack("<Q", MAX_HEADER + 1) + b"{}",
    "more than there can be": b"\xff" * 8 + b"{}",
}


@pytest.mark.parametrize("what", LENGTHS)
def test_hostile_lengths(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(LENGTHS[what])
    with pytest.raises(CheckpointError, match=r"x\.safetensors"):
        TensorFile(path)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)])
def test_what_the_library_writes_is_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {
        "x": np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape),
        "y": np.ones(3, dtype="i8"),
    }
    save_file(arrays, tmp_path / "x.safetensors", metadata={"a": "b"})
    file = TensorFile(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        raw = file.read(name)
        assert raw.shape == array.shape
        assert raw.tobytes() == array.tobytes()
    tensors = Tensors([file])
    assert tensors.digests() == {name: digest(tensors.read(name)) for name in arrays}


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _folder, _device])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x.safetensors"
    make(path)
    with pytest.raises(CheckpointError, match=r"x\.safetensors: (is not a regular file|cannot be)"):
        TensorFile(path)


def test_names_of_files_that_cannot_be(tmp_path: Path) -> None:
    for name in ("x" * 300, "a\0b", "gone/x", "loop"):
        (tmp_path / "loop").symlink_to(tmp_path / "loop") if name == "loop" else None
        with pytest.raises(CheckpointError):
            TensorFile(tmp_path / name)


def test_a_file_that_changes_under_its_reader(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", TWO)
    file = TensorFile(path)
    other = written(tmp_path / "y.safetensors", TWO, bytes(12))
    other.replace(path)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        file.read("a")


def test_one_name_in_two_shards(tmp_path: Path) -> None:
    shards = [TensorFile(written(tmp_path / f"{i}.safetensors", TWO)) for i in range(2)]
    with pytest.raises(CheckpointError, match=r"1\.safetensors: tensor a is in 0\.safetensors too"):
        Tensors(shards)
