"""Directories of sentence-transformers: which pooling and normalisation they ask for."""

from __future__ import annotations

from collections.abc import Mapping

from hydrasurgeon.errors import CheckpointError, SurgeryError
from hydrasurgeon.files.manifest import Pooling
from hydrasurgeon.files.untrusted import parse_json

MODULES, POOLING, LIMITS = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
"""The modules that texts run through, what the second of them does, and how long texts may be."""
MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
"""Its words for a pooling, and ours."""
OLD_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Switches that stood in the place of its words before version 6."""
MAX_BYTES = 1 << 20
"""Largest size of each of the three files, in bytes."""


def pooling_of(described: Mapping[str, str], where: str) -> Pooling | None:
    """Return the pooling of modules.json; None without it, or if it has only the first module."""
    if MODULES not in described:
        return None
    modules = parse_json(described[MODULES], f"{where}: {MODULES}", most=MAX_BYTES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{where}: {MODULES}: is not a list of modules")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds in ([], ["Transformer"]):
        return None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise SurgeryError(
            f"{where}: {MODULES}: runs {', '.join(kinds)[:100]}, which is not supported",
            hint=f"Supported: Transformer, Pooling, Normalize. Without {MODULES} the transformer alone is read.",
        )
    return Pooling(mode=_mode(described, where), normalize="Normalize" in kinds)  # type: ignore[arg-type]


def _mode(described: Mapping[str, str], where: str) -> str:
    at = f"{where}: {POOLING}"
    record = parse_json(described.get(POOLING, "null"), at, most=MAX_BYTES)
    if not isinstance(record, dict):
        raise CheckpointError(f"{at}: is missing or not a JSON object")
    modes = record.get("pooling_mode")
    if modes is None:
        modes = [word for key, word in OLD_MODES.items() if record.get(key) is True]
    if isinstance(modes, str):
        modes = [modes]
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in MODES:
        raise SurgeryError(
            f"{at}: pools by {str(modes)[:100]}, which is not supported",
            hint=f"Supported: one of {', '.join(MODES)}.",
        )
    return MODES[modes[0]]


def longest(described: Mapping[str, str], where: str) -> int | None:
    """Return the number of tokens of a text that are read, if it is recorded."""
    at = f"{where}: {LIMITS}"
    record = parse_json(described.get(LIMITS, "{}"), at, most=MAX_BYTES)
    limit = record.get("max_seq_length") if isinstance(record, dict) else None
    return limit if type(limit) is int and limit > 0 else None
