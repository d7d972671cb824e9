"""Write the README's table, docs/hydra.svg, docs/benchmarks.md, docs/evidence.md and docs/reliability.md: figures come from result files.

make demo && python tools/render_docs.py --demo hydra-demo
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from built import build
from cascaded import cascades
from decided import decision, figures, prediction
from evidence import evidence
from inside import CORRUPTIONS, PROBE, corruptions, probe
from reliability import reliability

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- demo table: tools/render_docs.py writes it from the demo's results.json -->"
END = "<!-- end of demo table -->"
WORTH = "<!-- figures: tools/render_docs.py writes them from benchmarks/results/decision.json -->"
WORTH_END = "<!-- end of figures -->"
CASCADES = (
    "<!-- cascades: tools/render_docs.py writes them from benchmarks/results/cascade.json -->"
)
CASCADES_END = "<!-- end of cascades -->"
COLOURS = ("#2a6f97", "#c1666b", "#6a994e")


def demo_table(report: dict[str, Any]) -> str:
    """Two tables in Markdown: quality and cost, OOD detection."""
    quality = [
        ("accuracy ↑", 3, max, lambda r: r["id"]["accuracy"]), ("Brier ↓", 3, min, lambda r: r["id"]["brier"]),
        ("NLL ↓", 3, min, lambda r: r["id"]["nll"]), ("ECE ↓", 3, min, lambda r: r["id"]["ece"]),
        ("aECE ↓", 3, min, lambda r: r["id"]["aece"]), ("MI", 3, None, lambda r: r["diversity"]["mi"]),
        ("params M ↓", 3, min, lambda r: r["cost"] and r["cost"]["params"] / 1e6),
        ("MACs M ↓", 1, min, lambda r: r["cost"] and r["cost"]["macs"] / 1e6),
    ]  # fmt: skip
    foreign = [
        (f"{label} {group} {arrow}", 3, best, lambda r, g=group, k=key: r["ood_average"][g][k])
        for group in ("near", "far")
        for label, key, best, arrow in (
            ("AUROC", "auroc", max, "↑"),
            ("FPR95", "fpr95", min, "↓"),
            ("AUPR", "aupr", max, "↑"),
        )
    ]
    return "\n\n".join(markdown(report["results"], columns) for columns in (quality, foreign))


def markdown(results: list[dict[str, Any]], columns: list[tuple[str, int, Any, Any]]) -> str:
    lines = [
        "| | " + " | ".join(name for name, *_ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    cells = []
    for _, digits, best, get in columns:
        values = [get(r) for r in results]
        texts = ["–" if v is None else f"{v:.{digits}f}" for v in values]
        if best is not None:
            top = f"{best(v for v in values if v is not None):.{digits}f}"
            texts = [f"**{t}**" if t == top else t for t in texts]
        cells.append(texts)
    for i, result in enumerate(results):
        lines.append(
            f"| {TITLES.get(result['name'], result['name'])} | "
            + " | ".join(c[i] for c in cells)
            + " |"
        )
    return "\n".join(lines)


TITLES = {
    "backbone": "single model",
    "taylor": "pruned member (taylor, 5 of 8 heads, not tuned)",
    "single": "single model, calibrated",
    "built": "**what `build` made**, calibrated",
    "hydra": "Hydra as in the paper (3 × 36 of 48 heads, tuned)",
    "backbone + independent-2 + independent-3": "Deep Ensemble of 3",
}


def hydra_svg(manifest: dict[str, Any]) -> str:
    """A square for each head: which member keeps it."""
    (tower,) = manifest["towers"].values()
    size, gap, left, top = 16, 3, 70, 46
    step = size + gap
    width = left + len(manifest["members"]) * (tower["heads"] * step + 36)
    height = top + tower["layers"] * step + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for layer in range(tower["layers"]):
        parts.append(f'<text x="8" y="{top + layer * step + 12}" fill="#555">layer {layer}</text>')
    for i, member in enumerate(manifest["members"]):
        x = left + i * (tower["heads"] * step + 36)
        (rows,) = member["kept"].values()
        parts.append(
            f'<text x="{x}" y="{top - 14}" fill="{COLOURS[i]}" font-weight="bold">member {i + 1}</text>'
        )
        for layer, row in enumerate(rows):
            for head in range(tower["heads"]):
                fill = f'fill="{COLOURS[i]}"' if head in row else 'fill="none" stroke="#bbb"'
                parts.append(
                    f'<rect x="{x + head * step}" y="{top + layer * step}" width="{size}" height="{size}" rx="3" {fill}/>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = "|---|" + "---:|" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)]


def surgery(results: dict[str, Any]) -> list[str]:
    start, about = results["start_up"], results["machine"]
    rows = [
        [
            name, f"{r['seconds']:.2f}", f"{r['cp_seconds']:.2f}", f"{r['budget_seconds']:.2f}",
            f"{r['share_of_budget']:.2f}", f"{r['peak_mb']:.0f}", f"{r['torch_peak_mb']:.0f}",
        ]
        for name, r in ((name, results[name]) for name in ("prune", "fuse"))
    ]  # fmt: skip
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
                ["`hydrasurgeon inspect`", f"{start['inspect_s']:.2f}", f"{start['inspect_ratio']:.2f}"],
            ],
        ),
        "",
        "## Surgery on a ViT-L/16 (1.2 GB, random weights)",
        "",
        "The budget is twice the time of `cp` of the files read and written, plus the import of torch (which neither command",
        "needs). Times include hashing every byte read and written, and fsync.",
        "",
        *table(
            ["", "seconds", "`cp`", "budget", "of budget", "peak memory MB", "bare `import torch` MB"],
            rows,
        ),
    ]  # fmt: skip


def verify(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    rows = [
        [
            name, f"{r['bytes'] / 1e9:.2f}", f"{r['seconds']:.2f}", f"{r['ratio']:.2f}", f"{r['ratio_threaded']:.2f}", f"{r['ratio_sha256sum']:.2f}",
            f"{r['peak_mb']:.0f}", f"{r['hash_peak_mb']:.0f}",
        ]
        for name, r in results["results"].items()
    ]  # fmt: skip
    return [
        "## `verify` against hashing",
        "",
        f"A ViT-L/16 with random weights, and a hydra of three of its members; {about['cpu']}, {about['cores']} cores, Python {about['python']}, torch",
        f"{about['torch']}; whole processes in turn, medians of {results['runs']} runs. Hashing is Python's `hashlib.file_digest`, one thread; two threads",
        f"hash tensor by tensor as `verify` does, and do nothing else. The budget is {results['budget']} times hashing.",
        "",
        *table(
            ["", "GB", "seconds", "of hashing", "of two threads", "of `sha256sum`", "peak memory MB", "hashing MB"],
            rows,
        ),
    ]  # fmt: skip


def fused(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    runs = [p["runs"] for points in results["results"].values() for p in points]
    lines = [
        f"## Running a hydra of three members: {about['device']}",
        "",
        f"{about['cores']} cores, {about['threads']} threads, torch {about['torch']}; random weights, two thirds of the heads; all contenders in",
        f"turn in one process, medians of {min(runs)} to {max(runs)} runs. Times are relative to the single model at the same batch and",
        "dtype; a hydra that uses the machine as well as the single model does takes the time of the column *multiply-adds*,",
        "and on a device that waits for launches that of *launches* (operations of a pass of one sample that compute or copy).",
        "Single models and members run, and are counted, as their libraries run them: with a last layer for all tokens. (`eval` and",
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
            "", f"### {arch}", "", "Time relative to the single model, by dtype and batch size:", "", *table(head, times),
            "", "Peak memory in MB, weights and activations:", "", *table(["", *sizes], peaks), "", in_short(points),
        ]  # fmt: skip
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
        f"Of {len(hydras)} measurements of hydras {faster} take less time than their members in sequence and {smaller} less memory; "
        f"of {len(many)} from batch 4 up {cheap} take at most 1.10 times what their multiply-adds say."
    )


def modes(results: dict[str, Any]) -> list[str]:
    rows = [
        [
            str(r["width"]), "tuned" if r["tuned"] else "training-free", f"{short(r['dtype'])}, {r['batch']}",
            f"{r['size']:,}", f"{r['stacked']:.2f}", f"{r['apart']:.2f}",
            "stacked" if r["size"] < results["full"] else "apart",
        ]
        for r in results["results"]
    ]  # fmt: skip
    about = results["machine"]
    return [
        f"## Stacked or apart: {about['device']}",
        "",
        f"Hydras of three members, six layers, {results['results'][0]['tokens']} tokens, run both ways; time relative to the single model, {about['threads']} threads,",
        f"torch {about['torch']}, medians of {results['results'][0]['runs']} runs in turn. Size: numbers in one member's hidden states. `auto` stacks below {results['full']:,}.",
        "",
        *table(["width", "", "dtype, batch", "size", "stacked", "apart", "`auto`"], rows),
    ]  # fmt: skip


def short(dtype: str) -> str:
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]


def trunk(results: dict[str, Any]) -> list[str]:
    def row(p: dict[str, Any]) -> list[str]:
        what = (
            p["what"]
            if p["trunk"] is None
            else f"hydra, trunk of {p['trunk']}, {'tuned' if p['tuned'] else 'not tuned'}"
        )
        return [
            what, f"{p['macs_ratio']:.2f}", f"{p['params_ratio']:.2f}", f"{p['accuracy']:.3f}", f"{p['nll']:.3f}",
            f"{p['ece']:.3f}", f"{p['auroc_near']:.3f}", f"{p['auroc_far']:.3f}", f"{p['mi']:.4f}",
        ]  # fmt: skip

    return [
        "## Quality against cost over the trunk's length",
        "",
        "The demo's backbone (6 layers × 8 heads) on its test images. Three members lose a quarter of the heads of the layers after",
        f"the trunk, drawn from the half with the lowest taylor scores (`--sample`, `--layers`); means over {results['seeds']} seeds.",
        "",
        "![Quality against multiply-adds](trunk.svg)",
        "",
        *table(
            ["", "multiply-adds", "parameters", "accuracy ↑", "NLL ↓", "ECE ↓", "AUROC near ↑", "AUROC far ↑", "MI"],
            [row(p) for p in results["points"]],
        ),
    ]  # fmt: skip


def trunk_plot(results: dict[str, Any], path: Path) -> None:
    from hydrasurgeon.files.plots import figure, save_figure

    drawn = figure(9, 3.6)
    for axes, (key, title) in zip(
        drawn.subplots(1, 2), (("nll", "NLL (lower is better)"), ("auroc_near", "AUROC, near-OOD")), strict=True
    ):  # fmt: skip
        for tuned in (False, True):
            mine = [p for p in results["points"] if p["tuned"] is tuned]
            xs, ys = [p["macs_ratio"] for p in mine], [p[key] for p in mine]
            axes.plot(xs, ys, marker="o", label=f"hydra, {'tuned' if tuned else 'not tuned'}")
            for p in mine:
                axes.annotate(str(p["trunk"]), (p["macs_ratio"], p[key]), textcoords="offset points", xytext=(4, 4), fontsize=7)  # fmt: skip
        for p in results["points"]:
            if p["trunk"] is None:
                axes.scatter(p["macs_ratio"], p[key], marker="*", s=90, label=p["what"], zorder=3)
        axes.set(xlabel="multiply-adds / single model", title=title)
    axes.legend(fontsize=7, frameon=False)
    save_figure(drawn, path)


def compensation(results: dict[str, Any]) -> list[str]:
    rows, foreign = [], []
    for name, model in results["models"].items():
        for selection, found in model["selections"].items():
            rows.append([
                f"{name}, {selection}", f"{model['backbone']['accuracy']:.3f}", f"{found['pruned']['accuracy']:.3f}",
                *(f"{found[how]['mean']['accuracy']:.3f}" for how in ("mean", "lstsq")),
                *((f"{100 * found['lstsq']['mean']['accuracy_recovered']:.0f} %",
                " / ".join(f"{100 * s['accuracy_recovered']:.0f}" for s in found["lstsq"]["seeds"]))
                if model["backbone"]["accuracy"] - found["pruned"]["accuracy"] > 0.01 else ("–", "–")),
            ])  # fmt: skip
            if "near" in model["backbone"]:
                of = (model["backbone"], found["pruned"], found["mean"]["mean"], found["lstsq"]["mean"])  # fmt: skip
                foreign.append([f"{name}, {selection}", *(f"{each[group]:.3f}" for group in ("near", "far") for each in of)])  # fmt: skip
    return [
        "## Repair without training (`prune --compensate`)",
        "",
        "Heads chosen by taylor, a third of all; accuracy on test data, calibrated on inputs without labels; recovered is the",
        "share of the lost accuracy that comes back, mean and for each calibration seed (– where a point or less was lost).",
        "",
        *table(["", "backbone", "pruned", "`mean`", "`lstsq`", "`lstsq` recovers", "by seed, %"], rows),
        "",
        "AUROC of near and of far foreign data by msp, mean over the calibration seeds:",
        "",
        *table([
            "", "near: backbone", "pruned", "`mean`", "`lstsq`", "far: backbone", "pruned", "`mean`", "`lstsq`",
        ], foreign),
    ]  # fmt: skip


def circuits(results: dict[str, Any]) -> list[str]:
    rows = []
    for name, objectives in results["searches"].items():
        for kind, r in objectives.items():
            score = r["score"]
            rows.append([
                f"{name}, {kind}", f"{r['budget']} of {r['heads']}", f"{r['id_samples']} + {r['ood_samples']}",
                f"{r['naive_removals']}", f"{r['exact_ratio_same_removals']:.1f}", f"{r['exact_ratio']:.1f}",
                f"{r['fast_ratio']:.1f}", f"{100 * r['fast_in_common']:.0f} %",
                f"{score['start']:.4f}", f"{score['exact']:.4f}", f"{score['fast']:.4f}",
            ])  # fmt: skip
    drift = [
        [
            f"{name}, {kind}", f"{r['budget']}", f"{r['same_removals']}", f"{100 * r['in_common']:.0f} %",
            f"{r['score']['float32']:.4f}", f"{r['score']['bfloat16']:.4f}",
        ]
        for name, objectives in results.get("bfloat16", {}).items()
        for kind, r in objectives.items()
    ]  # fmt: skip
    head = [
        "", "removed", "samples, ID + OOD", "by naive", "`exact`, same removals", "`exact`", "`fast`",
        "in common", "score before", "`exact`", "`fast`",
    ]  # fmt: skip
    lines = [
        "## Circuits (`score --method circuit`)",
        "",
        f"CPU seconds of Algorithm 1 as written (`--search naive`) over those of the other searches, float32, {results['machine']['threads']} thread, torch",
        f"{results['machine']['torch']}. `exact` gave naive's order in every run. Naive made the first removals only; beyond them its",
        "time follows from its time per evaluation. In common: heads that `fast` and `exact` both removed.",
        "",
        *table(head, rows),
    ]
    for name, faster in results.get("by_length", {}).items():
        lines += [
            "",
            f"The searches put texts of like length into a batch, naive takes them as they come: sorted too, an evaluation of {name},",
            f"would take {faster:.2f} of its time.",
        ]
    if drift:
        lines += [
            "",
            "The same search in bfloat16: removals until its order first differs from float32, heads in common at the end, and the",
            "scores of both circuits in float32.",
            "",
            *table(["", "removed", "same order for", "in common", "float32", "bfloat16"], drift),
        ]
    return lines


def refine(results: dict[str, Any]) -> list[str]:
    """Swaps and attribution against the greedy loop."""
    sizes, machine = results["sizes"], results["machine"]

    def mean(entries: list[dict[str, Any]], *path: str) -> float:
        total = 0.0
        for entry in entries:
            value: Any = entry
            for key in path:
                value = value[key]
            total += value
        return total / len(entries)

    rows, costs = [], []
    for kind, entries in results["objectives"].items():
        for amount in dict.fromkeys(entry["amount"] for entry in entries):
            of = [entry for entry in entries if entry["amount"] == amount]
            name = f"{kind}, {amount} of {sizes['heads']}"
            for side, said in (("search", "searched on"), ("held_out", "held out")):
                cells = [mean(of, which, side) for which in ("whole", "random")]
                cells += [mean(of, "found", way, side) for way in of[0]["found"]]
                rows.append([name if side == "search" else "", said, *(f"{cell:.4f}" for cell in cells)])  # fmt: skip
            gains = {
                (side, way): mean(of, "found", way, side) - mean(of, "random", side)
                for side in ("search", "held_out") for way in ("attribution", "greedy")
            }  # fmt: skip
            shares = [
                100 * gains[side, "attribution"] / gains[side, "greedy"]
                for side in ("search", "held_out")
            ]
            greedy = mean(of, "units", "greedy")
            costs.append([
                name, f"{mean(of, 'evaluations', 'greedy'):.0f}",
                f"{1 + mean(of, 'evaluations', 'swap') / mean(of, 'evaluations', 'greedy'):.2f}x",
                f"{1 + mean(of, 'units', 'swap') / greedy:.2f}x", f"{mean(of, 'swaps', 'swap'):.1f}",
                f"{sum(e['found']['swap']['held_out'] >= e['found']['greedy']['held_out'] for e in of)} of {len(of)}",
                f"{100 * mean(of, 'units', 'attribution') / greedy:.1f} %", f"{shares[0]:.0f} %", f"{shares[1]:.0f} %",
                f"{100 * mean(of, 'units', 'attribution + swap') / greedy:.0f} %",
            ])  # fmt: skip
    ways = ["whole", "random", "greedy", "greedy + swap", "attribution", "attribution + swap"]
    return [
        "## Better and cheaper circuits (`--refine swap`, `--search attribution`)",
        "",
        f"The demo's ViT, {machine['processor']}, {machine['threads']} thread, torch {machine['torch']}: circuits searched on {sizes['id']} validation images and {sizes['ood']} of the",
        f"near OOD images, measured there and on the test images and the other near OOD images; mean of {sizes['splits']} splits. Random: {sizes['random_sets']} sets of that size.",
        "",
        *table(["", "", *ways], rows),
        "",
        "What it takes: evaluations of the greedy loop (`exact`), then evaluations and CPU time with swaps behind it over those without, swaps made, splits in",
        "which the held-out objective is at least greedy's; attribution's CPU time over greedy's without measuring its trace, and its share of greedy's gain over random sets on both",
        "sides; attribution's with swaps behind it.",
        "",
        *table([
            "", "greedy", "+ swap", "its time", "swaps", "held out ≥", "attribution", "gain, searched on", "gain, held out", "+ swap",
        ], costs),
    ]  # fmt: skip


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
        f"{results['model']} with two classes, {results['texts']} texts ({results['data']}), batches of {results['batch']}, float32;",
        f"{about['device']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}; medians of {results['runs']} runs, all loops in turn.",
        "The plain loop tokenises a batch and runs `AutoModelForSequenceClassification`; for `score` (taylor) it has gradients for the same",
        f"weights. Batches of texts of like length carry {padding['sorted']:.0f} % padding, batches in the order of the data {padding['unsorted']:.0f} %.",
        "",
        *table(["", "texts/s", "speed"], rows),
    ]  # fmt: skip


def report(results: dict[str, Any]) -> list[str]:
    about, targets = results["setup"], results["targets"]
    metrics, both = results["metrics"], results["with_report"]
    rows = [
        ["all metrics", f"{metrics['seconds']:.1f}", f"{targets['metrics_seconds']}", f"{metrics['peak_gb']:.2f}", f"{targets['metrics_gb']}"],
        ["the report, besides", f"{results['report_seconds']:.1f}" if results["report_seconds"] > 0 else "in the noise", f"{targets['report_seconds']}", f"{both['peak_gb']:.2f}", f"{targets['metrics_gb']}"],
    ]  # fmt: skip
    return [
        "## `eval --predictions-in` and its report",
        "",
        f"Stored predictions of {results['rows']:,} samples, {results['classes']:,} classes and {results['members']} members, with {results['foreign']:,} foreign samples; whole",
        f"processes, imports too; {about['processor']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}; the fastest of {results['repeats']} runs.",
        f"The page has {results['page_bytes'] / 1000:.0f} kB.",
        "",
        *table(["", "s", "target", "peak GB", "target"], rows),
    ]  # fmt: skip


def weights(results: dict[str, Any]) -> list[str]:
    ways = ("equal", "fitted", "guarded by nll", "guarded by avg", "fitted on 200", "guarded by nll on 200", "guarded by avg on 200")  # fmt: skip
    models = {
        f"{task}, {name}": r for task, of in results["tasks"].items() for name, r in of.items()
    }
    rows = [
        [name, " / ".join(f"{w:.2f}" for w in r["weights"]), *(f"{r[way]['nll']:.4f}" for way in ways), *(f"{100 * r[way]['near']:.1f}" for way in ways[:4])]
        for name, r in models.items()
    ]  # fmt: skip

    def worse(way: str) -> str:
        count = sum(r[way]["nll"] > r["equal"]["nll"] for r in models.values())
        return f"{count} of {len(models)}"

    def taken(guard: str) -> str:
        whole = sum(r[f"guarded by {guard}"]["taken"] for r in models.values())
        few = sum(r[f"guarded by {guard} on 200"]["taken"] for r in models.values()) / len(models)
        return f"{guard} takes them in {whole} of {len(models)} and, fitted on 200, in {100 * few:.0f} % of the draws"

    return [
        "## Members that count differently",
        "",
        "Weights of the members in the mean of their probabilities, with the smallest NLL on 1,000 validation samples (or on 200 of them, the mean of five draws), against equal ones: NLL on test",
        "data, AUROC of near foreign data by msp. Guarded weights are those of `build --weights fit`: taken where each half of the samples says of the other's that they are worth more than a",
        f"standard error. Without the guard NLL on test data is worse in {worse('fitted')}, on 200 in {worse('fitted on 200')}; {taken('nll')}, {taken('avg')}.",
        "",
        *table(["", "fitted", *(f"NLL {way}" for way in ways), *(f"near {way}" for way in ways[:4])], rows),
    ]  # fmt: skip


SECTIONS = {
    "circuits": circuits,
    "refine": refine,
    "surgery": surgery,
    "verify": verify,
    "fused-cpu": fused,
    "fused-cuda": fused,
    "modes-cpu": modes,
    "modes-cuda": modes,
    "trunk": trunk,
    "compensation": compensation,
    "text": text,
    "decision": decision,
    "build": build,
    "weights": weights,
    "predict": prediction,
    "report": report,
}


def benchmarks() -> str:
    """Everything there are results of."""
    lines = [
        "# Benchmarks",
        "",
        "Generated by `tools/render_docs.py` from the files in `benchmarks/results/`, which the scripts in `benchmarks/` write",
        "(`make bench`). Both sides of each comparison are measured in turn in one run, on shared and noisy machines: read the",
        "ratios, not the times.",
    ]
    for name, section in SECTIONS.items():
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        if path.exists():
            lines += ["", *section(json.loads(path.read_text(encoding="utf-8")))]
    return "\n".join(lines) + "\n"


def result(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def put_between(path: Path, begin: str, end: str, content: str) -> None:
    before, rest = path.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, help="also write the README's table, from this folder")
    folder = parser.parse_args().demo
    if folder is not None:
        shown = demo_table(json.loads((folder / "results.json").read_text()))
        put_between(ROOT / "README.md", BEGIN, END, shown)
        picture = hydra_svg(json.loads((folder / "hydra.heads.json").read_text()))
        (ROOT / "docs" / "hydra.svg").write_text(picture, encoding="utf-8")
    curve = ROOT / "benchmarks" / "results" / "trunk.json"
    if curve.exists():
        trunk_plot(json.loads(curve.read_text()), ROOT / "docs" / "trunk.svg")
    (ROOT / "docs" / "benchmarks.md").write_text(benchmarks(), encoding="utf-8")
    worth = result("decision")
    if worth is not None:
        put_between(ROOT / "docs" / "decision.md", WORTH, WORTH_END, figures(worth))
    stepwise = result("cascade")
    if stepwise is not None:
        put_between(ROOT / "docs" / "cascade.md", CASCADES, CASCADES_END, cascades(stepwise))
    spoiled, looked = result("corruptions"), result("probe")
    if spoiled is not None:
        put_between(ROOT / "docs" / "shift.md", *CORRUPTIONS, corruptions(spoiled))
    if looked is not None:
        put_between(ROOT / "docs" / "probe.md", *PROBE, probe(looked))
    quality = result("quality")
    if quality is not None:
        (ROOT / "docs" / "evidence.md").write_text(evidence(quality, looked), encoding="utf-8")
    tried = reliability(result("fuzz"), result("crash"))
    (ROOT / "docs" / "reliability.md").write_text(tried, encoding="utf-8")


if __name__ == "__main__":
    main()
