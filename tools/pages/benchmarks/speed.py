"""The sections of docs/reference/benchmarks.md on time and memory: starting, surgery, verifying, running, evaluating."""

from __future__ import annotations

from typing import Any

from pages.tables import table


def surgery(results: dict[str, Any]) -> list[str]:
    start, about = results["start_up"], results["machine"]
    rows = [
        [
            name,
            f"{r['seconds']:.2f}",
            f"{r['cp_seconds']:.2f}",
            f"{r['budget_seconds']:.2f}",
            f"{r['share_of_budget']:.2f}",
            f"{r['peak_mb']:.0f}",
            f"{r['torch_peak_mb']:.0f}",
        ]
        for name, r in ((name, results[name]) for name in ("prune", "fuse"))
    ]
    return [
        "## Start-up",
        "",
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}; medians of {results['runs']} runs.",
        "",
        *table(
            ["", "seconds", "of `import torch`"],
            [
                ['`python -c "import torch"`', f"{start['import_torch_s']:.2f}", "1"],
                ["`hydrasurgeon --help`", f"{start['help_s']:.2f}", f"{start['help_ratio']:.2f}"],
                [
                    "`hydrasurgeon inspect`",
                    f"{start['inspect_s']:.2f}",
                    f"{start['inspect_ratio']:.2f}",
                ],
            ],
        ),
        "",
        "## Surgery on a ViT-L/16 (1.2 GB, random weights)",
        "",
        (
            "The budget is twice the time of `cp` of the files read and written, plus the import of torch (which"
            " neither command"
        ),
        "needs). Times include hashing every byte read and written, and fsync.",
        "",
        *table(
            [
                "",
                "seconds",
                "`cp`",
                "budget",
                "of budget",
                "peak memory MB",
                "bare `import torch` MB",
            ],
            rows,
        ),
    ]


def verify(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    rows = [
        [
            name,
            f"{r['bytes'] / 1e9:.2f}",
            f"{r['seconds']:.2f}",
            f"{r['ratio']:.2f}",
            f"{r['ratio_threaded']:.2f}",
            f"{r['ratio_sha256sum']:.2f}",
            f"{r['peak_mb']:.0f}",
            f"{r['hash_peak_mb']:.0f}",
        ]
        for name, r in results["results"].items()
    ]
    return [
        "## `verify` against hashing",
        "",
        (
            f"A ViT-L/16 with random weights, and a hydra of three of its members; {about['cpu']}, {about['cores']}"
            f" cores, Python {about['python']}, torch"
        ),
        (
            f"{about['torch']}; whole processes in turn, medians of {results['runs']} runs. Hashing is Python's"
            " `hashlib.file_digest`, one thread; two threads"
        ),
        (
            f"hash tensor by tensor as `verify` does, and do nothing else. The budget is {results['budget']} times"
            " hashing."
        ),
        "",
        *table(
            [
                "",
                "GB",
                "seconds",
                "of hashing",
                "of two threads",
                "of `sha256sum`",
                "peak memory MB",
                "hashing MB",
            ],
            rows,
        ),
    ]


def tuning(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    rows = [
        [name, f"{r['seconds']:.0f}", f"{r['ratio']:.2f}", f"{r['peak_mb']:.0f}"]
        for name, r in results["results"].items()
    ]
    return [
        "## Tuning a hydra",
        "",
        f"A text encoder of MiniLM's sizes with random weights, {results['texts']:,} texts, two epochs; members behind three",
        "shared layers of six, whose other layers are unpruned or keep 8 of 12 heads and half the neurons;",
        f"{about['cpu']}, {about['cores']} cores, torch {about['torch']}; whole processes in turn, medians of {results['runs']} runs.",
        "",
        *table(["", "seconds", "of one unpruned model", "peak memory MB"], rows),
    ]


def fused(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    runs = [p["runs"] for points in results["results"].values() for p in points]
    lines = [
        f"## Running a hydra of three members: {about['device']}",
        "",
        (
            f"{about['cores']} cores, {about['threads']} threads, torch {about['torch']}; random weights, two thirds of"
            " the heads; all contenders in"
        ),
        (
            f"turn in one process, medians of {min(runs)} to {max(runs)} runs. Times are relative to the single model"
            " at the same batch and"
        ),
        (
            "dtype; a hydra that uses the machine as well as the single model does takes the time of the column"
            " *multiply-adds*,"
        ),
        (
            "and on a device that waits for launches that of *launches* (operations of a pass of one sample that"
            " compute or copy)."
        ),
        (
            "Single models and members run, and are counted, as their libraries run them: with a last layer for all"
            " tokens. (`eval` and"
        ),
        "`bench` run and count them like hydras, for the tokens that are read.)",
    ]
    for arch, points in results["results"].items():
        found = {(p["contender"], p["dtype"], p["batch"]): p for p in points}
        shapes = sorted(
            {(p["dtype"], p["batch"]) for p in points}, key=lambda x: (x[0] != "float32", x)
        )
        sizes = [f"{short(d)}, {b}" for d, b in shapes]
        head = ["", "parameters", "multiply-adds", "launches", *sizes]
        times, peaks = [], []
        for name in dict.fromkeys(p["contender"] for p in points):
            mine = [found.get((name, *shape)) for shape in shapes]
            counts = [
                next((f"{p[key]:.2f}" for p in mine if p and p.get(key)), "–")
                for key in ("params_ratio", "macs_ratio", "launches_ratio")
            ]
            times.append(
                [name, *counts, *("–" if p is None else f"{p['ratio']:.2f}" for p in mine)]
            )
            peaks.append([name, *("–" if p is None else f"{p['peak_mb']:.0f}" for p in mine)])
        singles = [found.get(("single", *shape)) for shape in shapes]
        times.append(
            ["single, ms", "", "", "", *("–" if p is None else f"{p['ms']:.0f}" for p in singles)]
        )
        lines += [
            "",
            f"### {arch}",
            "",
            "Time relative to the single model, by dtype and batch size:",
            "",
            *table(head, times),
            "",
            "Peak memory in MB, weights and activations:",
            "",
            *table(["", *sizes], peaks),
            "",
            in_short(points),
        ]
    return lines


def in_short(points: list[dict[str, Any]]) -> str:
    """How often a hydra is what it should be, over all dtypes and batch sizes."""
    members = {
        (p["dtype"], p["batch"]): p for p in points if p["contender"] == "members in sequence"
    }
    hydras = [
        (p, members[p["dtype"], p["batch"]])
        for p in points
        if p["contender"].startswith("hydra") and "compile" not in p["contender"]
    ]
    many = [p for p, _ in hydras if p["batch"] >= 4]
    faster = sum(p["ratio"] <= m["ratio"] for p, m in hydras)
    smaller = sum(p["peak_mb"] <= m["peak_mb"] for p, m in hydras)
    cheap = sum(p["ratio"] <= 1.1 * p["macs_ratio"] for p in many)
    return (
        f"Of {len(hydras)} measurements of hydras {faster} take less time than their members in sequence and {smaller}"
        f" less memory; of {len(many)} from batch 4 up {cheap} take at most 1.10 times what their multiply-adds say."
    )


def modes(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            str(r["width"]),
            "tuned" if r["tuned"] else "training-free",
            f"{short(r['dtype'])}, {r['batch']}",
            f"{r['size']:,}",
            f"{r['stacked']:.2f}",
            f"{r['apart']:.2f}",
            "stacked" if r["size"] < results["full"] else "apart",
        ]
        for r in results["results"]
    ]
    about = results["machine"]
    return [
        f"## Stacked or apart: {about['device']}",
        "",
        (
            f"Hydras of three members, six layers, {results['results'][0]['tokens']} tokens, run both ways; time"
            f" relative to the single model, {about['threads']} threads,"
        ),
        (
            f"torch {about['torch']}, medians of {results['results'][0]['runs']} runs in turn. Size: numbers in one"
            f" member's hidden states. `auto` stacks below {results['full']:,}."
        ),
        "",
        *table(["width", "", "dtype, batch", "size", "stacked", "apart", "`auto`"], rows),
    ]


def short(dtype: str) -> str:
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]


def text(results: dict[str, Any]) -> list[str]:
    about, tokens = results["machine"], results["tokens"]
    padding = {name: 100 * (t["run"] / t["real"] - 1) for name, t in tokens.items()}
    rows = [
        [f"`{task}`, {name}", f"{r['texts_per_second']:.0f}", f"{r['speed']:.2f}"]
        for task, loops in results["results"].items()
        for name, r in loops.items()
    ]
    return [
        "## Texts: `eval` and `score` against a plain transformers loop",
        "",
        (
            f"{results['model']} with two classes, {results['texts']} texts ({results['data']}), batches of"
            f" {results['batch']}, float32;"
        ),
        (
            f"{about['device']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}; medians of"
            f" {results['runs']} runs, all loops in turn."
        ),
        (
            "The plain loop tokenises a batch and runs `AutoModelForSequenceClassification`; for `score` (taylor) it"
            " has gradients for the same"
        ),
        (
            f"weights. Batches of texts of like length carry {padding['sorted']:.0f} % padding, batches in the order of"
            f" the data {padding['unsorted']:.0f} %."
        ),
        "",
        *table(["", "texts/s", "speed"], rows),
    ]


def report(results: dict[str, Any]) -> list[str]:
    about, targets = results["setup"], results["targets"]
    metrics, both = results["metrics"], results["with_report"]
    rows = [
        [
            "all metrics",
            f"{metrics['seconds']:.1f}",
            f"{targets['metrics_seconds']}",
            f"{metrics['peak_gb']:.2f}",
            f"{targets['metrics_gb']}",
        ],
        [
            "the report, besides",
            f"{results['report_seconds']:.1f}" if results["report_seconds"] > 0 else "in the noise",
            f"{targets['report_seconds']}",
            f"{both['peak_gb']:.2f}",
            f"{targets['metrics_gb']}",
        ],
    ]
    return [
        "## `eval --predictions-in` and its report",
        "",
        (
            f"Stored predictions of {results['rows']:,} samples, {results['classes']:,} classes and"
            f" {results['members']} members, with {results['foreign']:,} OOD samples; whole"
        ),
        (
            f"processes, imports too; {about['processor']}, {about['cores']} cores, {about['threads']} threads, torch"
            f" {about['torch']}; medians of {results['repeats']} runs, both in turn."
        ),
        f"The page has {results['page_bytes'] / 1000:.0f} kB.",
        "",
        *table(["", "s", "target", "peak GB", "target"], rows),
    ]


def engines(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{row['contender']}, {row['engine']}",
            str(row["batch"]),
            f"{row['ms']:.1f}",
            f"{row['macs_ratio']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['time']:.2f}",
        ]
        for row in results["rows"]
    ]
    vnni = "with" if results["vnni"] else "without"
    return [
        "## Hydras in torch, in ONNX and in 8 bits",
        "",
        f"MiniLM, texts of {results['tokens']} tokens, one thread of {results['cpu']} {vnni} VNNI, torch {results['torch']}; medians of",
        f"{results['runs']} runs in turn, of the milliseconds that the thread computed. Three members keep half of the heads and neurons; behind a mean",
        "trunk of three layers three in five. `time` is in units of `build --budget time=`: the single model's float32, in the faster of",
        "torch and ONNX.",
        "",
        *table(["", "batch", "ms", "multiply-adds", "of the single model's time", "time"], rows),
    ]


def answering(results: dict[str, Any]) -> list[str]:
    """The section on `--engine`."""
    about, settings = results["machine"], results["settings"]
    rows = [
        [
            f"`{name}`",
            f"{each['rows_per_second']:.0f} ({each['times_torch']:.1f}x)",
            f"{each['own_ms']:.2f}",
            f"{each['client_ms']:.2f} ({each['client_ms'] / each['own_ms']:.1f}x)",
        ]
        for name, each in results["engines"].items()
    ]
    head = ["engine", "rows a second", "a text in the engine, ms", "one client at `serve`, ms"]
    return [
        "## Engines (`--engine`)",
        "",
        (
            f"all-MiniLM-L6-v2 with a classifier and a decision state, {settings['rows']} short texts, one thread,"
            f" medians of {settings['runs']} runs in turn on a loaded machine, rows per second that the process computed;"
        ),
        (
            f"{about['cpu']} ({', '.join(about['flags'])}), torch {about['torch']},"
            f" onnxruntime {about['onnxruntime']}. Ratios: to torch's rows, and to the engine's own time."
        ),
        "",
        *table(head, rows),
    ]


def predictor(results: dict[str, Any]) -> list[str]:
    """The section of `hs.Predictor`, and of what large tables take."""
    about, engines = results["machine"], results["engines"]
    rows = [
        [engine, side, f"{each['speed']:.2f}", f"{each['rows_per_second']:.0f}"]
        for engine, sides in engines.items()
        for side, each in sides.items()
    ]
    lines = [
        "## `hs.Predictor` against `predict` and a plain loop",
        "",
        (
            f"{results['model']} with a random classifier over {results['rows']} short texts, batches of"
            f" {results['batch']}, tables of {results['piece']} rows; {about['device']},"
        ),
        (
            f"{about['cores']} cores, torch {about['torch']};"
            f" medians of {results['runs']} runs in turn. `predict` is the whole process,"
        ),
        (
            "start and imports included, which few rows pay for most; the others are loaded before, and two processes"
            " have one thread each. The plain loop is transformers' model in torch, longest"
        ),
        "texts first; `pipeline` is transformers' own, in the order of the data.",
        "",
        *table(["engine", "", "throughput, times the plain loop's", "rows a second"], rows),
    ]
    memory = results.get("memory")
    if memory is None:
        return lines
    grown = [
        [f"`{command}`", str(each["imported_mb"]), str(each["grown_mb"])]
        for command, each in memory["commands"].items()
    ]
    return [
        *lines,
        "",
        (
            f"Memory for {memory['rows']:,} short texts in a .jsonl file and a model of three classes, beyond what the"
            " same command holds once it has run on a few (`--memory`; `calibrate --ood-score msp`):"
        ),
        "",
        *table(["", "imported MB", "peak beyond it MB"], grown),
    ]
