"""docs/reference/evidence.md: each of the paper's claims marked, from benchmarks/results/quality.json."""

from __future__ import annotations

from typing import Any

from pages.evidence.claims import TRAINED, claims


def page(results: dict[str, Any], looked: dict[str, Any] | None = None) -> str:
    """The page: the claims, and how each task was measured; `looked` is what benchmarks/proposition_one.py found."""
    lines = [
        "# Evidence",
        "",
        "Written by `tools/render_docs.py` from `benchmarks/results/quality.json`, the result of `benchmarks/quality.py`.",
        "The paper's claims were tested on small models and data. A claim that holds here may fail elsewhere, and vice versa.",
        "The OOD data that chose heads is not among the OOD data reported. The OOD score is msp. What a cost buys, and the plain",
        "rivals of a hydra, are in [quality at every cost](front.md).",
        "",
        "## The paper's claims",
        "",
        *claims(results["tasks"], looked),
        "",
        "## How it was measured",
    ]
    for name, task in results["tasks"].items():
        lines += ["", *_about(name, task)]
    if any(rival in task["rows"] for task in results["tasks"].values() for rival in TRAINED):
        lines += ["", *_trained()]
    return "\n".join(lines) + "\n"


def _about(name: str, task: dict[str, Any]) -> list[str]:
    about, machine = task["about"], task["machine"]
    sizes = ", ".join(f"{kind} {count}" for kind, count in about["samples"].items())
    tuned = (
        "all training data"
        if about["tuned_on"] is None
        else f"{about['tuned_on']} training samples each"
    )
    single = (
        ""
        if about["bases"] > 3
        else " All seeds have one and the same Deep Ensemble, of all three trainings, so it has no spread of its own."
    )
    return [
        (
            f"**{name}**: seed s starts from the s-th of {about['bases']} independent trainings.{single} Members lose"
            f" {about['removed']} heads (drawn from the first {about['pool']}), scored on {about['score_limit']}"
            " samples, circuits"
        ),
        (
            f"by `--search {about['search']}`; tuning is the recipe {about['recipe']} on {tuned}, MLPs and embeddings"
            f" frozen. Near: {', '.join(about['near'])}; far: {', '.join(about['far'])};"
        ),
        (
            f"choosing: {about['chooses']} and perturbed validation data. Samples: {sizes}. {machine['cpu']}, torch"
            f" {machine['torch']}{', bfloat16 autocast' if about['bfloat16'] else ''}."
        ),
    ]


def _trained() -> list[str]:
    """What is to be known of the rivals that are not made of the base."""
    return [
        (
            f"{', '.join(TRAINED)}: three members each, trained from random weights on the base's images, augmentations"
            " and number of steps, of torch-uncertainty's layers"
        ),
        (
            "(it is among the development packages; without it these rows are left out). Settings as in the paper's"
            " C.1.4: α = 2 and γ = 1, members of 48 channels (42.7, rounded up to what eight heads"
        ),
        (
            "divide); ρ = 0.5, each batch mixed four times; BatchEnsemble's members see every image, and start from"
            " random weights where the paper tunes a trained checkpoint. The packed layers were kept from"
        ),
        (
            "mixing members: in torch-uncertainty 0.13 their layer norm and self-attention do."
            " `benchmarks/quality_rivals_trained.py`."
        ),
    ]
