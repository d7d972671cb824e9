"""The kinds of hostile input: how files come in from somewhere else."""

from __future__ import annotations

from fuzz.kinds import configs, decisions, manifests

KINDS = {"manifests": manifests, "configs": configs, "decisions": decisions}
