"""The kinds of hostile input: how files come in from somewhere else."""

from __future__ import annotations

from fuzz.kinds import configs, decisions, manifests, predictions

KINDS = {
    "manifests": manifests,
    "configs": configs,
    "decisions": decisions,
    "predictions": predictions,
}
