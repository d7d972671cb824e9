"""Large checkpoints: prune, fuse and inspect hold a few blocks of a file in memory, whatever its size."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.families.hf_encoder.architectures import stock_config, weights
from hydrasurgeon.families.weights import shapes_of
from hydrasurgeon.files.manifest import parse_manifest
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256

GB = 10**9
MOST_MEMORY = 1 * GB
# A BERT of four layers of 4096: 3.8 GB in float32, MLPs of 268 MB, an embedding of 500 MB.
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "intermediate_size": 16384,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
ARCH = "BertForSequenceClassification"
MEASURED = """
import re, sys
from pathlib import Path
from hydrasurgeon.cli.app import run
code = run(sys.argv[1:])
# Not getrusage: its maximum is handed on by the process that started this one.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
sys.exit(code)
"""


def sparse(path: Path, config: dict[str, Any], mark: int) -> None:
    """A weight file of holes, but for one number at the start of every tensor."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in sorted(
        shapes_of(weights(stock_config(config, "config.json"), ARCH, 2)).items()
    ):
        end = at + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)
        for name, entry in entries.items():
            if name != "__metadata__":
                file.seek(8 + len(header) + entry["data_offsets"][0])
                file.write(struct.pack("<f", mark if ".dense.weight" in name else 1))


def directory(folder: Path, config: dict[str, Any], mark: int) -> Path:
    folder.mkdir()
    labels = {"id2label": {"0": "a", "1": "b"}, "architectures": [ARCH]}
    (folder / "config.json").write_text(json.dumps({**config, **labels}))
    sparse(folder / "model.safetensors", config, mark)
    return folder


def run(*arguments: str | Path, cwd: Path) -> int:
    """One command in a process of its own; its peak memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder for gigabytes, which go with the test however it ends."""
    if not Path("/proc/self/status").exists():
        pytest.skip("reads a peak of memory from /proc")
    if shutil.disk_usage(tmp_path).free < 20 * GB:
        pytest.skip("needs 20 GB of disk")
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_four_gigabytes_in_one_of_memory(roomy: Path) -> None:
    for i in (1, 2):
        folder = directory(roomy / f"bert{i}", CONFIG, mark=i)
        assert (folder / "model.safetensors").stat().st_size > 3.7 * GB
    peaks = {"inspect": run("inspect", "bert1", "--json", cwd=roomy)}
    prune = ("prune", "--method", "random", "--keep", "16", "--quiet", "--json")
    for i in (1, 2):
        peaks[f"prune {i}"] = run(*prune, "--seed", str(i), f"bert{i}", "-o", f"m{i}", cwd=roomy)
        shutil.rmtree(roomy / f"bert{i}")
    peaks["fuse"] = run("fuse", "m1", "m2", "-o", "h", "--quiet", "--json", cwd=roomy)
    for i in (1, 2):
        (roomy / f"m{i}.safetensors").unlink()
    peaks["verify"] = run("verify", "h", "--json", cwd=roomy)
    assert max(peaks.values()) < MOST_MEMORY, peaks


def test_a_large_tensor_passes_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same surgery, with blocks smaller than any tensor: the same bytes, and never more at once than a block or a
    layer's heads."""
    import hydrasurgeon as hs
    from hydrasurgeon.files import tensors as module
    from hydrasurgeon.surgery import means

    small = {
        **CONFIG,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 40,
        "max_position_embeddings": 16,
    }
    for i in (1, 2):
        directory(tmp_path / f"bert{i}", small, mark=i)
    largest = 0
    empty = module._empty

    def watched(info: Any, count: int) -> Any:
        nonlocal largest
        array = empty(info, count)
        largest = max(largest, array.nbytes)
        return array

    monkeypatch.setattr(module, "_empty", watched)
    hashes = []
    for block in (module.BLOCK_BYTES, 1024):
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
        monkeypatch.setattr(means, "BLOCK_BYTES", block)
        largest = 0
        out = tmp_path / str(block)
        out.mkdir()
        for i in (1, 2):
            hs.prune(tmp_path / f"bert{i}", method="random", keep=2, seed=i, out=out / f"m{i}")
        hs.fuse([out / "m1", out / "m2"], out=out / "h")
        # Only what members share of a layer's heads is put together in one piece.
        assert largest <= max(block, 4 * 32 * small["hidden_size"])
        hashes.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert hashes[0] == hashes[1]
    opened = Tensors([TensorFile(tmp_path / "1024" / "h.safetensors")])
    manifest = parse_manifest(opened.files[0].metadata["hydrasurgeon"], "h")
    assert weights_sha256(opened, opened.digests()) == manifest.weights_sha256
