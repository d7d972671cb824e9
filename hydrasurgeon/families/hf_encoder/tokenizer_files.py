"""Take tokens out of a tokenizer, and what a text becomes does not change where its tokens stay.

WordPiece takes the longest piece there is, so what is not in a text's way cannot be missed. BPE
merges by rank: what a token is merged from stays with it. Unigram takes the best path, which stays
the best among fewer; the worst score stays, of which that of the unknown token is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hydrasurgeon.families.hf_encoder.companions import CONFIG, SPECIAL, WHOLE

FIRST = 8
"""So many ids stay whatever texts say: libraries expect some roles by number."""
BYTE = re.compile("<0x[0-9A-F]{2}>")
"""Tokens of single bytes, for characters without a token of their own."""


def closed(raw: Mapping[str, Any], token_ids: Iterable[int]) -> list[int]:
    """Return these ids of a tokenizer.json and those that it needs, in rising order."""
    model = raw["model"]
    ids = _numbered(model)
    names = {number: token for token, number in ids.items()}
    kept = {number for number in names if number < FIRST} | {*token_ids}
    kept |= {word["id"] for word in raw["added_tokens"]}
    kept |= {ids[token] for token in ids if BYTE.fullmatch(token)}
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        kept |= {scores.index(min(scores)), model.get("unk_id") or 0}
    elif (unknown := model.get("unk_token")) in ids:
        kept.add(ids[unknown])
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""

    def bare(token: str) -> str:
        return token.removeprefix(prefix).removesuffix(suffix)

    # BPE without bytes or an unknown token drops a character that it does not know.
    needs_letters = model["type"] == "BPE" and not model.get("byte_fallback")
    seen = {letter for number in kept & names.keys() for letter in bare(names[number])}
    for token, number in ids.items():
        if len(letter := bare(token)) == 1 and (needs_letters or letter in seen):
            kept.add(number)
    parts: dict[int, set[int]] = {}
    for first, second in model.get("merges", ()):
        merged = ids[first + second[len(prefix) :]]
        parts.setdefault(merged, set()).update((ids[first], ids[second]))
    new = {*kept}
    while new:
        new = {part for number in new for part in parts.get(number, ())} - kept
        kept |= new
    return sorted(kept)


def renumbered(raw: dict[str, Any], kept: list[int]) -> dict[str, Any]:
    """Return a tokenizer.json of these ids alone, which then count from 0 on."""
    new = {old: at for at, old in enumerate(kept)}
    model = dict(raw["model"])
    ids, prefix = _numbered(model), model.get("continuing_subword_prefix") or ""
    if model["type"] == "Unigram":
        model["vocab"] = [entry for at, entry in enumerate(model["vocab"]) if at in new]
        model["unk_id"] = None if model.get("unk_id") is None else new[model["unk_id"]]
    else:
        model["vocab"] = {token: new[old] for token, old in ids.items() if old in new}
    if "merges" in model:
        model["merges"] = [
            [first, second]
            for first, second in model["merges"]
            if {ids[first], ids[second], ids[first + second[len(prefix) :]]} <= new.keys()
        ]
    padding = raw.get("padding")
    return {
        **raw,
        "model": model,
        "added_tokens": [{**word, "id": new[word["id"]]} for word in raw["added_tokens"]],
        "post_processor": _mapped(raw.get("post_processor"), new),
        "padding": padding and {**padding, "pad_id": new.get(padding["pad_id"], 0)},
    }


def trimmed_files(raw: dict[str, Any], kept: list[int], files: Mapping[str, str]) -> dict[str, str]:
    """Return the companions with this tokenizer.json alone; older files with the same content go."""
    new = {old: at for at, old in enumerate(kept)}
    new_files = {WHOLE: json.dumps(renumbered(raw, kept), ensure_ascii=False)}
    if SPECIAL in files:
        new_files[SPECIAL] = files[SPECIAL]
    if CONFIG in files:
        config = json.loads(files[CONFIG])
        if "added_tokens_decoder" in config:
            config["added_tokens_decoder"] = {
                str(new[int(old)]): word for old, word in config["added_tokens_decoder"].items()
            }
        if "unk_id" in config:
            config["unk_id"] = new[config["unk_id"]]
        new_files[CONFIG] = json.dumps(config, indent=2, ensure_ascii=False)
    return new_files


def _numbered(model: Mapping[str, Any]) -> dict[str, int]:
    """Return ids by token."""
    if model["type"] == "Unigram":
        return {token: at for at, (token, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _mapped(part: Any, new: Mapping[int, int]) -> Any:
    """Return a post-processor, which puts special tokens around a text, with the new ids."""
    if isinstance(part, list):
        return [_mapped(entry, new) for entry in part]
    if not isinstance(part, dict):
        return part
    mapped = {key: _mapped(value, new) for key, value in part.items()}
    if "ids" in part:
        mapped["ids"] = [new[number] for number in part["ids"]]
    for key in ("sep", "cls"):
        if isinstance(part.get(key), list):
            token, number = part[key]
            mapped[key] = [token, new[number]]
    return mapped
