"""The sections of docs/reference/benchmarks.md on `calibrate` and `predict`."""

from __future__ import annotations

from statistics import median
from typing import Any

from pages.decision import CHOSEN_BY, Setting, settings
from pages.tables import table


def decision(results: dict[str, Any]) -> list[str]:
    """The section of docs/reference/benchmarks.md."""
    every = settings(results)
    lines = [
        "## Decision states (`calibrate`)",
        "",
        (
            "AUROC of every OOD score, means over three seeds, on test data and on OOD data that chose nothing."
            " Which models and data"
        ),
        "these are stands in `benchmarks/decision_models.py`.",
    ]
    scores = list(dict.fromkeys(score for each in every for score in each.scores))
    for at in range(0, len(every), 2):
        pair = every[at : at + 2]
        names = [*pair[0].near, *pair[0].far, "mean"]
        rows = []
        for score in scores:
            row = [f"`{score}`"]
            for each in pair:
                for name in names:
                    text = f"{each.auroc(score, name):.3f}" if score in each.scores else "–"
                    row.append(f"**{text}**" if name == "mean" and score == each.best else text)
            rows.append(row)
        head = [
            pair[0].name.partition(",")[0],
            *(f"{each.name.partition(', ')[2]} {name}" for each in pair for name in names),
        ]
        lines += ["", *table(head, rows)]
    lines += [
        "",
        (
            "What `auto` chooses (in how many of the seeds), and its distance in points of mean AUROC to the score that"
            " is best on average:"
        ),
        "",
        *table(
            ["", "best", *(f"`auto` {how}" for how in CHOSEN_BY.values()), "over msp"],
            [
                [
                    each.name,
                    f"`{each.best}` {each.auroc(each.best):.3f}",
                    *(
                        f"{each.chosen(by)} {100 * (each.auto(by) - each.auroc(each.best)):+.1f}"
                        for by in CHOSEN_BY
                    ),
                    " / ".join(
                        f"{100 * (each.auto(by) - each.auroc('msp')):+.1f}" for by in CHOSEN_BY
                    ),
                ]
                for each in every
            ],
        ),
        "",
        (
            "Promises, over random splits of validation and test data together: coverage (and mean size) of sets that"
            " promise 0.9, 100 splits;"
        ),
        (
            "how often a promised risk of 5 % with confidence 95 % was broken, 200 splits. NLL and ECE on test data"
            " before and after, means over seeds."
        ),
        "",
        *table(
            ["", "lac", "aps", "raps", "risk broken", "NLL", "ECE"],
            [_promises(each) for each in every],
        ),
    ]
    return [*lines, *_fitting(results)]


def _promises(each: Setting) -> list[str]:
    promised = each.seeds[0]["promises"]
    risk = promised["risk"]
    joint = sum(seed["joint"] for seed in each.seeds)
    return [
        each.name,
        *(
            f"{promised['coverage'][m]:.3f} ({promised['size'][m]:.2f})"
            for m in ("lac", "aps", "raps")
        ),
        f"{risk['broken']} of {risk['splits'] - risk['refused']}, {risk['refused']} refused",
        f"{each.mean(lambda s: s['nll']['before']):.4f} → {each.mean(lambda s: s['nll']['after']):.4f}"
        + (f" ({joint} of {len(each.seeds)} joint)" if joint else ""),
        f"{each.mean(lambda s: s['ece'][0]):.4f} → {each.mean(lambda s: s['ece'][1]):.4f}",
    ]


def _fitting(results: dict[str, Any]) -> list[str]:
    about = results["pieces"].get("fitting")
    if about is None:
        return []
    rows = [
        [
            "all of `calibrate`, from as many validation samples"
            if what == "calibrate"
            else f"`{what}`",
            f"{each['seconds']:.0f}",
            f"{each['cpu']:.0f}",
            f"{each['peak_mb']:.0f}",
            f"{each['bytes'] / 1e6:.1f}" if each["bytes"] else "–",
        ]
        for what, each in about["scores"].items()
    ]
    threads = about["threads"]
    return [
        "",
        (
            f"Fitting to 50,000 features of width 768 and 1,000 classes, in a process of its own, {threads}"
            f" thread{'' if threads == 1 else 's'}, torch {about['torch']}, {about['machine']['cpu']}; on a busy"
            " machine, so read the CPU seconds. Torch itself is some 500 MB of the peak:"
        ),
        "",
        *table(["", "s", "CPU s", "peak MB", "MB stored for a member"], rows),
    ]


def prediction(results: dict[str, Any]) -> list[str]:
    """The section of `predict`."""
    about, ratios = results["machine"], results["throughput"]
    return [
        "## `predict` against a plain loop",
        "",
        (
            f"{results['model']} with random weights and a decision state (rmds) over {results['pictures']} JPEG files,"
            f" batches of {results['batch']}, float32; {about['device']},"
        ),
        (
            f"{about['cores']} cores, torch {about['torch']}; whole processes in turn, {results['runs']} pairs. The"
            " plain loop is timm's model behind timm's transform and a"
        ),
        "`DataLoader`, and writes id, label and probability.",
        "",
        *table(
            ["throughput, ours / plain", "median", "lowest", "highest"],
            [
                [name, f"{median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}"]
                for name, values in (
                    ("by the clock", ratios["wall"]),
                    ("by CPU time", ratios["cpu"]),
                )
            ],
        ),
    ]
