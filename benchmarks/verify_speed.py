"""What `verify` of a 1.2 GB model costs against hashing it: whole processes, run in turn, medians.

Hashed three times: as anyone does in Python, the file as a whole by one thread (hashlib.file_digest); as our commands
do,
every tensor by two threads; and by sha256sum. Writes benchmarks/results/verify.json, from which tools/render_docs.py
makes docs/reference/benchmarks.md.

    python benchmarks/verify_speed.py [--runs 9] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import hydrasurgeon, machine, processes
from surgery_speed import make_vit

RESULTS = Path(__file__).parent / "results" / "verify.json"
BUDGET = 1.5
"""Times the plain hashing, at most."""
PLAIN = "import sys, hashlib; hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256').hexdigest()"
"""How anyone hashes a file in Python."""
THREADED = (
    "import sys; from pathlib import Path; from hydrasurgeon.files.tensors import TensorFile, Tensors;"
    "Tensors([TensorFile(Path(sys.argv[1]))]).digests()"
)
"""As our commands hash: every tensor, by two threads."""


def make(folder: Path) -> None:
    """A recorded backbone and a hydra of three of its members."""

    def quietly(*words: str) -> None:
        subprocess.run(hydrasurgeon(*words), cwd=folder, check=True, capture_output=True)

    make_vit(folder / "bare.safetensors")
    quietly("score", "--method", "random", "bare", "-o", "single")
    (folder / "bare.safetensors").unlink()
    prune = ("prune", "--method", "random", "--keep", "11", "single", "--seed")
    for seed in ("1", "2", "3"):
        quietly(*prune, seed, "-o", f"m{seed}")
    quietly("fuse", "m1", "m2", "m3", "-o", "hydra")
    for seed in ("1", "2", "3"):
        (folder / f"m{seed}.safetensors").unlink()


def measured(name: str, runs: int, folder: Path) -> dict[str, float]:
    file = f"{name}.safetensors"
    ours, plain, threaded, sha256sum = processes(
        hydrasurgeon("verify", name, "--quiet"),
        [sys.executable, "-c", PLAIN, file],
        [sys.executable, "-c", THREADED, file],
        ["sha256sum", file],
        runs=runs,
        cwd=folder,
    )
    return {
        "bytes": (folder / file).stat().st_size,
        "seconds": ours[0],
        "hash_seconds": plain[0],
        "threaded_seconds": threaded[0],
        "sha256sum_seconds": sha256sum[0],
        "ratio": ours[0] / plain[0],
        "ratio_threaded": ours[0] / threaded[0],
        "ratio_sha256sum": ours[0] / sha256sum[0],
        "peak_mb": ours[1],
        "hash_peak_mb": plain[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="where the large files go")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        make(folder)
        results = {
            "machine": machine(),
            "runs": arguments.runs,
            "budget": BUDGET,
            "results": {
                name: measured(name, arguments.runs, folder) for name in ("single", "hydra")
            },
        }
    finally:
        shutil.rmtree(folder)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
