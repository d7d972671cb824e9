"""What the file operations cost: start-up against `import torch`, prune and fuse of a 1.2 GB ViT against `cp`.

Both sides of each comparison run in turn in one session; figures are ratios of medians. Writes
benchmarks/results/surgery.json, from which tools/render_docs.py makes docs/reference/benchmarks.md.

    python benchmarks/surgery_speed.py [--runs 5] [--folder DIR] [--only start_up|surgery]
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

RESULTS = Path(__file__).parent / "results" / "surgery.json"
TORCH = [sys.executable, "-c", "import torch"]


def start_up(runs: int, cwd: Path) -> dict[str, float]:
    small = str(Path(__file__).parents[1] / "hydrasurgeon" / "demo" / "backbone.safetensors")
    torch, helps, inspects = processes(
        TORCH, hydrasurgeon("--help"), hydrasurgeon("inspect", small), runs=runs, cwd=cwd
    )
    return {
        "import_torch_s": torch[0],
        "help_s": helps[0],
        "inspect_s": inspects[0],
        "help_ratio": helps[0] / torch[0],
        "inspect_ratio": inspects[0] / torch[0],
    }


def make_vit(path: Path) -> None:
    """A ViT-L/16 with random weights: 1.2 GB in float32.

    In a process of its own: a child's peak memory starts at what its parent held when it was forked.
    """
    script = (
        "import sys, timm, torch; from safetensors.torch import save_file; torch.manual_seed(0);"
        "model = timm.create_model('vit_large_patch16_224');"
        "save_file(model.state_dict(), sys.argv[1], metadata={'format': 'pt'})"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


def surgery(runs: int, folder: Path) -> dict[str, dict[str, float]]:
    """Budget: twice the time of cp of the bytes read and written, plus the import of torch; 600 MB above it."""
    make_vit(folder / "vit.safetensors")
    prune = hydrasurgeon(
        "prune",
        "--method",
        "random",
        "--keep",
        "11",
        "vit",
        "-o",
        "p.safetensors",
        "--force",
        "--quiet",
    )
    for seed in ("1", "2", "3"):
        subprocess.run(
            hydrasurgeon(
                "prune",
                "--method",
                "random",
                "--keep",
                "11",
                "--seed",
                seed,
                "vit",
                "-o",
                f"m{seed}.safetensors",
            ),
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    fuse = hydrasurgeon("fuse", "m1", "m2", "m3", "-o", "h.safetensors", "--force", "--quiet")
    subprocess.run(prune, cwd=folder, check=True)
    subprocess.run(fuse, cwd=folder, check=True)
    found = {}
    for name, command, inputs, output in (
        ("prune", prune, ["vit"], "p"),
        ("fuse", fuse, ["m1", "m2", "m3"], "h"),
    ):
        # cp reads and writes what it is given: half of it for the bytes read, half for those written.
        reads = [folder / f"{i}.safetensors" for i in inputs]
        copies = " && ".join(
            f"cp {p.name} copy.bin" for p in [*reads, folder / f"{output}.safetensors"]
        )
        ours, copy, torch = processes(command, ["sh", "-c", copies], TORCH, runs=runs, cwd=folder)
        budget = 2 * copy[0] + torch[0]
        found[name] = {
            "seconds": ours[0],
            "cp_seconds": copy[0],
            "import_torch_seconds": torch[0],
            "budget_seconds": budget,
            "share_of_budget": ours[0] / budget,
            "peak_mb": ours[1],
            "torch_peak_mb": torch[1],
            "bytes_read": sum(p.stat().st_size for p in reads),
            "bytes_written": (folder / f"{output}.safetensors").stat().st_size,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where the large files go; a temporary folder if not given"
    )
    parser.add_argument("--only", choices=("start_up", "surgery"), help="measure this part anew")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"machine": machine(), "runs": arguments.runs}
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        if arguments.only != "surgery":
            results["start_up"] = start_up(arguments.runs, folder)
        if arguments.only != "start_up":
            results |= surgery(arguments.runs, folder)
    finally:
        shutil.rmtree(folder)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
