"""Peaks of memory on stand-ins for an 8B reward model: files of holes with its widths, and training at small ones.

    python benchmarks/large.py [whole|four|small]…     about ten minutes, 20 GB of disk and 8 GB of memory

Each figure is the peak (VmHWM, Linux) of a process of its own that imports everything anew. Weights
are zeros: what they hold does not change what is held. `score` and `finetune` take fewer layers or
narrower ones than the 8B model has; docs/guide/large.md computes the rest from them.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import machine

from hydrasurgeon.families.decoder.architectures import KINDS, DecoderConfig, weights
from hydrasurgeon.families.hf_encoder.architectures import stock_config
from hydrasurgeon.families.weights import shapes_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "large.json"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForSequenceClassification"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "pad_token_id": 1,
    "id2label": {"0": "worse", "1": "better"},
}
"""Llama 3.1 8B with two classes: 7.5 billion parameters beside the language model's output."""
SMALL = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "vocab_size": 32_000,
    "num_hidden_layers": 8,
}
"""What two processes can train here."""
CODE = """
import re, sys
from pathlib import Path
from hydrasurgeon.cli.app import run
if "spread" in sys.argv:
    from hydrasurgeon.runtime import spread
    spread.room = dict  # as if nothing were free: what may stay in the file does
code = run(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


def stand_in(folder: Path, **changes: Any) -> int:
    """A directory in bfloat16 with a tokenizer; the bytes of its weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    settings = {**LLAMA, **changes}
    record = stock_config(settings, "config.json", KINDS)
    assert isinstance(record, DecoderConfig)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes_of(weights(record, 2)).items():
        end = at + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)
    words = {"[UNK]": 0, "[PAD]": 1, **{f"w{i}": i + 2 for i in range(50)}}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]").save_pretrained(folder)
    return at


def peaks(folder: Path, *words: str, processes: int = 1, fsdp: bool = False) -> list[float]:
    """GB that each process of one command held at most."""
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    (folder / "measured.py").write_text(CODE)
    done = subprocess.run(
        [*launch, "measured.py", *words, "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_FSDP": str(fsdp).lower(),
        },
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found = re.findall(r"peak (\d+)", done.stderr)
    print(words[0], found, flush=True)
    return sorted(round(int(kb) * 1024 / 1e9, 2) for kb in found)


def whole(folder: Path) -> dict[str, Any]:
    """What reads and writes files, at the size of the 8B model."""
    size = stand_in(folder / "whole")
    prune = ("prune", "--method", "random", "--keep", "6", "--layers", "16-31")
    return {
        "file": round(size / 1e9, 2),
        "inspect": peaks(folder, "inspect", "whole", "--json"),
        "prune": peaks(folder, *prune, "whole", "-o", "m"),
    }


def four(folder: Path) -> dict[str, Any]:
    """What runs, at its widths."""
    size = stand_in(folder / "four", num_hidden_layers=4)
    prune = ("prune", "--method", "random", "--keep", "6", "--layers", "2-3", "four")
    for seed in ("1", "2"):
        peaks(folder, *prune, "--seed", seed, "-o", f"m{seed}")
    score: tuple[str, ...] = (
        "score",
        "four",
        "--method",
        "taylor",
        "--data",
        "data.jsonl",
        "--batch-size",
        "1",
    )
    score += ("--limit", "4", "--dtype", "bfloat16", "-o", "s", "--force")
    return {
        "file": round(size / 1e9, 2),
        "fuse": peaks(folder, "fuse", "m1", "m2", "-o", "h"),
        "score": peaks(folder, *score, "--device", "cpu"),
        "score --device spread": peaks(folder, *score, "--device", "spread"),
    }


def small(folder: Path) -> dict[str, Any]:
    """What trains."""
    size = stand_in(folder / "small", **SMALL)
    tune: tuple[str, ...] = (
        "finetune",
        "small",
        "--data",
        "data.jsonl",
        "--recipe",
        "text",
        "--device",
        "cpu",
    )
    tune += ("--set", "steps=2", "--set", "classifier=keep", "--set", "batch_size=1")
    tune += ("-o", "t", "--force")
    return {
        "float32": round(2 * size / 1e9, 2),
        "finetune": peaks(folder, *tune),
        "finetune, two processes": peaks(folder, *tune, processes=2),
        "finetune, two processes, FSDP": peaks(folder, *tune, processes=2, fsdp=True),
    }


PARTS = {"32 layers of 4096": whole, "4 layers of 4096": four, "8 layers of 1024": small}


def main(names: Sequence[str]) -> None:
    """All parts, or those whose functions are named; the others' figures stay."""
    measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measured["machine"] = machine()
    for name, part in PARTS.items():
        if names and part.__name__ not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            rows = [{"text": f"w{i} w{i + 1} w{i + 2}", "label": i % 2} for i in range(8)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (Path(scratch) / "data.jsonl").write_text(lines)
            measured[name] = part(Path(scratch))
        RESULTS.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
