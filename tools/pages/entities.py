"""docs/guide/entities.md: what models of entities are worth on tweets, and whether promises are kept, from
benchmarks/results/entities.json.
"""

from __future__ import annotations

import statistics
from typing import Any

from pages.tables import table

MARKS = (
    "<!-- entities: tools/render_docs.py writes it from benchmarks/results/entities.json -->",
    "<!-- end of entities -->",
)
FIGURES = {
    "f1": "F1 ↑",
    "precision": "Prec",
    "recall": "Rec",
    "nll": "NLL ↓",
    "entity_ece": "entity ECE ↓",
    "aurc": "AURC ↓",
    "near": "near AUROC ↑",
}
WAYS = {"calibrate": "`calibrate`", "independent": "limits for independent entities"}
COST = {"wrong": "answered", "missed": "covered"}
"""What a promise costs: of the entities found so many are answered; or so many words belong to one."""


def passage(results: dict[str, Any]) -> str:
    """The models, then the promises."""
    seeds = list(results["seeds"].values())
    names = list(dict.fromkeys(name for rows in seeds for name in rows))
    rows = [row for name in names for row in _rows(name, seeds, results.get("time", {}))]
    head = ["", "engine", "seeds", "multiply-adds", "time", *FIGURES.values(), "F1, WNUT ↑"]
    lines = [
        *table(head, rows),
        "",
        (
            "Broad Twitter Corpus (persons, places, organisations): MiniLM, 2,000 tweets train, 2,001 calibrate, 2,000 test; "
            f"means over the seeds named, ± their standard deviation: compare rows of the same seeds. One seed's F1 is known to {_interval(seeds)} (95 %, "
            "resampled by tweet). F1 is strict IOB2 of the most probable tags; NLL is of words, after calibration. Near: is a "
            "tweet of WNUT 17 unfamiliar; the last column is F1 there, with its kinds named as ours. Time: a batch of 16, one thread, "
            f"in the single model's in float32 ({results['cpu']}, torch {results['torch']}). `benchmarks/entities.py`."
        ),
    ]
    promises = results.get("promises")
    if promises is not None:
        lines += ["", *_promises(promises, results.get("abroad", {}))]
    return "\n".join(lines)


def _rows(
    name: str, seeds: list[dict[str, Any]], time: dict[str, dict[str, float]]
) -> list[list[str]]:
    """Each engine of one model."""
    made = []
    for engine in ("float32", "int8"):
        places = [at for at, rows in enumerate(seeds) if engine in rows.get(name, {})]
        runs = [seeds[at][name] for at in places]
        if not runs:
            continue
        taken = f"{time[name][engine]:.2f}" if name in time else "–"
        cells = [_mean([run[engine][figure] for run in runs], figure) for figure in FIGURES]
        abroad = [run["shift"]["f1"] for run in runs] if engine == "float32" else []
        cost = f"{statistics.fmean(run['cost'] for run in runs):.2f}"
        shown = _mean(abroad, "shift") if abroad else "–"
        called = ", ".join(map(str, places))
        made.append(
            [name if engine == "float32" else "", engine, called, cost, taken, *cells, shown]
        )
    return made


def _mean(values: list[float], figure: str) -> str:
    spread = ""
    if figure == "f1" and len(values) > 1:
        spread = f" ± {statistics.stdev(values):.3f}"
    return f"{statistics.fmean(values):.3f}{spread}"


def _interval(seeds: list[dict[str, Any]]) -> str:
    """Half of the widest interval of F1."""
    ends = [row["float32"]["ci"]["f1"] for rows in seeds for row in rows.values()]
    return f"± {max(high - low for low, high in ends) / 2:.3f}"


def _promises(promises: dict[str, Any], abroad: dict[str, Any]) -> list[str]:
    rows = []
    for name, ways in promises.items():
        if not isinstance(ways, dict):
            continue
        promise, risk = name.split()
        for way, rates in ways.items():
            cells = [f"{100 * rates['refused']:.0f} %"]
            if "broken" in rates:
                cells += [f"{100 * rates[key]:.1f} %" for key in ("broken", promise, COST[promise])]
            else:
                cells += ["–"] * 3
            elsewhere = abroad.get(name) if way == "calibrate" else None
            cells.append(f"{100 * elsewhere[promise]:.1f} %" if elsewhere else "–")
            rows.append([f"{promise} ≤ {100 * float(risk):.0f} %", WAYS[way], *cells])
    head = ["promise", "by", "refused", "broken", "what came of it", "answered, covered", "on WNUT"]
    return [
        f"{promises['splits']} random halves of {promises['texts']:,} tweets calibrate the mean, the others are what is promised for; a promise may be "
        f"broken with probability {100 * promises['delta']:.0f} %:",
        "",
        *table(head, rows),
        "",
        "Broken: in so many splits the fraction on the other half lay above the promise, which counts the chance of that half too. Answered: of the entities that were found "
        "(`wrong`); covered: words that belong to an entity (`missed`). Exact binomial limits, as if entities were drawn one by one, are broken more often than "
        "they say for `missed`, where a tweet's entities are missed together; for `wrong` they hold here, and refuse less. The last column is what comes of a promise where nobody made it: other tweets, whose annotators had other rules.",
    ]
