"""The model card of a directory: what it is, how it was made, what was measured, how to load it."""

from __future__ import annotations

import shlex

from hydrasurgeon.checkpoints.decided_words import data_lines, decision_lines
from hydrasurgeon.families.base import Usage
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.history import command_line
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.untrusted import code
from hydrasurgeon.heads import count

CARD = "README.md"
"""The model card of a directory, as the hub shows it."""
OUR_TAG = "\n- hydrasurgeon\n"
"""Tag in the front matter of our cards."""


OURS = """## With hydrasurgeon

{what}:

```python
import hydrasurgeon as hs

model = hs.load("DIR")
probs = model.predict(inputs)
```

"""
"""The section about loading a directory with us."""
RUNS = {
    "hydra": "It runs all members in one pass and gives every member's logits",
    "member": "It runs what was cut as it is",
    "backbone": "It loads the directory as it is",
}
"""Sentences about loading a checkpoint with hydrasurgeon, by its kind."""
FOLDED = "- the constants that calibrate are in the model already: the probabilities that any client makes of its logits are calibrated; decision.json holds the thresholds"


def model_card(
    manifest: Manifest,
    usage: Usage,
    *,
    folded: DecisionRecord | None = None,
    loading_section: str = OURS,
) -> str:
    """Write the model card, README.md in the hub's layout.

    Every number comes from the manifest, or from the `folded` decision, whose constants are part of
    the model's weights or graph.
    """
    model, (kind, description) = manifest.model, _describe(manifest)
    library, task, loading = usage
    classes = f"{model.num_classes} classes" if model.num_classes else "no classifier"
    labels = [code(label) for label in (model.labels or ())[:10]]
    more = ["…"] if len(model.labels or ()) > 10 else []
    names = f" ({', '.join([*labels, *more])})" if labels else ""
    tags = "\n- attention-head-pruning" if _lost_heads(manifest) else ""
    section = loading_section.replace("{what}", RUNS[manifest.kind])
    return f"""---
library_name: {library}
pipeline_tag: {task}
tags:
- hydrasurgeon
- {manifest.kind}{tags}
---

# {kind}: {code(model.arch)}

```python
{loading.strip()}
```

{description}

Architecture: {code(f"{model.family}:{model.arch}")}, {classes}{names}.

{section}{_decision(manifest, folded)}
## How it was made

{_history(manifest)}

## Measured

{_measured(manifest)}
"""


def _heads(manifest: Manifest) -> int:
    """Count the heads of the model before anything was pruned."""
    return sum(tower.layers * tower.heads for tower in manifest.towers.values())


def _lost_heads(manifest: Manifest) -> bool:
    """Return True if the model, or a member, has fewer heads than it began with."""
    kept = [record.kept or {} for record in manifest.members or (manifest,)]
    return any(count(heads) < _heads(manifest) for heads in kept)


def _describe(manifest: Manifest) -> tuple[str, str]:
    """Return the title's first words, and the first sentences."""
    total = _heads(manifest)
    if manifest.kind == "hydra":
        counts = ", ".join(str(count(member.kept)) for member in manifest.members)
        return (
            f"Hydra of {len(manifest.members)} members",
            f"A Hydra Ensemble: {len(manifest.members)} classifiers that keep different attention heads of one pretrained model ({counts} of {total}), fused into one. Its prediction is the mean of their probabilities. MLPs: {manifest.fusion.mlp}; the first {manifest.fusion.trunk} layers are shared.",
        )
    kind, kept = "Pruned" if manifest.kind == "member" else "Backbone", count(manifest.kept)
    if kept == total:
        return kind, f"A classifier with all of its {total} attention heads."
    return (
        kind,
        f"A classifier that keeps {kept} of {total} attention heads; the others were cut out of its weights.",
    )


def _decision(manifest: Manifest, folded: DecisionRecord | None) -> str:
    """Return the section about the decision state; an empty text without one."""
    decision = folded or manifest.decision
    if decision is None:
        return ""
    lines = [f"- {line}" for line in decision_lines(decision)]
    if decision.abstain is None and decision.limits is None:
        lines.append("- it answers always: no risk was promised")
    if folded is not None:
        lines.append(FOLDED)
    lines += [
        f"- {use}: {code(data.spec)}, {data.rows} rows, sha256 {code(data.sha256[:12])}…"
        for use, data in data_lines(manifest)
    ]
    return "\n## When it answers\n\n" + "\n".join(lines) + "\n"


def _history(manifest: Manifest) -> str:
    lines = []
    for number, entry in enumerate(manifest.history, 1):
        seen = ", ".join(
            f"{data.rows} rows, sha256 {code(data.sha256[:12])}…" for data in entry.data
        )
        command = code(shlex.join(["hydrasurgeon", *command_line(entry)]))
        lines.append(f"{number}. {command}" + (f" ({seen})" if seen else ""))
    return "\n".join(lines) or "Nothing was recorded."


def _measured(manifest: Manifest) -> str:
    lines = []
    for name, score in manifest.scores.items():
        if score.trace:
            rows = ", ".join(f"{data.rows} rows of {code(data.spec)}" for data in score.data)
            lines.append(
                f"- {code(name)}: the search's objective went from {score.trace[0]:.4f} to {score.trace[-1]:.4f}"
                + (f" on {rows}" if rows else "")
            )
    return "\n".join(lines) or "Nothing was recorded."
