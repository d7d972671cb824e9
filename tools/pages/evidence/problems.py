"""The other kinds of problem on real data, for docs/reference/evidence.md, from benchmarks/results/problems.json."""

from __future__ import annotations

import statistics
from typing import Any

from pages.tables import table

TASKS = {
    "rerank": (
        "One logit: do two queries mean the same?",
        "A cross-encoder of pairs of CLINC150's queries (`examples/clinc_pairs.py`), eight to a query, of which two have its"
        " intent. Near OOD data: queries of intents held out; far: queries of no intent. All are ranked against queries that"
        " do not answer them.",
        ("auroc", "ap", "mrr10", "ndcg10"),
    ),
    "tags": (
        "Many labels: what is a package?",
        "Tags of Debian's packages by their one-line descriptions (`examples/debian_tags.py`), 24 labels; accuracy, NLL and"
        " ECE are over label decisions. Near OOD data: descriptions of fonts, games and science; far: CLINC150's queries.",
        ("micro_f1", "macro_f1", "map", "exact_match"),
    ),
    "claims": (
        "Pairs and three classes: does it follow?",
        "A description and a claim that its tags bear out, contradict, or say nothing of, which is like inference (NLI;"
        " `examples/debian_tags.py`). Near OOD data: claims about packages of other sections; far: pairs of CLINC150's"
        " queries.",
        (),
    ),
}
"""Task → its heading, what it is, and the metrics that its kind of problem has beside the usual ones."""
NAMES = {
    "auroc": "AUROC of yes ↑",
    "ap": "AP ↑",
    "mrr10": "MRR@10 ↑",
    "ndcg10": "nDCG@10 ↑",
    "micro_f1": "micro F1 ↑",
    "macro_f1": "macro F1 ↑",
    "map": "mAP ↑",
    "exact_match": "exact ↑",
}
USUAL = {"accuracy": "accuracy ↑", "nll": "NLL ↓", "ece": "ECE ↓"}


def problems(results: dict[str, Any]) -> str:
    """A table for each task, means over seeds with standard deviations."""
    lines = [
        "## Other kinds of problem",
        "",
        "Written from `benchmarks/results/problems.json`, the result of `benchmarks/problems.py`. The single model is MiniLM, tuned"
        " on a part of the data.",
        "Members lose 12 of the first 24 heads of its later half by Taylor and are tuned for one epoch more, alone (*member*) or"
        " behind the first half (*hydra*, three members).",
        "Uncalibrated rows detect OOD data by msp, calibrated ones by the score that `calibrate` chose on perturbed validation"
        " data. Training, scores and answers are in bfloat16.",
        "A cascade's cost is the average over the test data (`calibrate --cascade --max-drop 0.5`).",
        "The training data are few, for minutes of one core: compare the rows of a table, not a table with what others reach.",
    ]
    for name, (heading, about, more) in TASKS.items():
        if name in results:
            lines += [
                "",
                f"### {heading}",
                "",
                about,
                _sizes(results[name]),
                "",
                *_table(results[name]["seeds"], more),
            ]
    return "\n".join(lines) + "\n"


def _sizes(task: dict[str, Any]) -> str:
    epochs = f"{task['epochs']} epoch{'s' * (task['epochs'] > 1)}"
    return (
        f"{task['rows']:,} rows train for {epochs} (the classifier begins {task.get('classifier', 'fresh')}), {task['held']:,} validate, {task['tests']:,} test;"
        f" {task['outside']:,} of each OOD set. {task['machine']['cpu']}, torch {task['torch']}."
    )


def _table(seeds: dict[str, Any], more: tuple[str, ...]) -> list[str]:
    runs = list(seeds.values())
    base = runs[0]["single"]["cost"]["macs"]
    rows = []
    for name in runs[0]:
        of_seeds = [run[name] for run in runs]
        values = [[each["id"].get(metric) for each in of_seeds] for metric in (*USUAL, *more)]
        values += [[each["ood"][at]["auroc"] for each in of_seeds] for at in range(2)]
        costs = [
            (each["cost"].get("expected_macs") or each["cost"]["macs"]) / base for each in of_seeds
        ]
        rows.append([name, str(len(runs)), f"{statistics.mean(costs):.2f}", *map(_spread, values)])
    head = [
        "",
        "seeds",
        "multiply-adds",
        *USUAL.values(),
        *(NAMES[each] for each in more),
        "near ↑",
        "far ↑",
    ]
    return table(head, rows)


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{statistics.mean(known):.3f}" + (
        f" ± {statistics.stdev(known):.3f}" if len(known) > 1 else ""
    )
