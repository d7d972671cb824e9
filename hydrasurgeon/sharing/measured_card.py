"""`eval --card`: a checkpoint's own result in its model card, between markers, as the hub's
model-index, and as an entry for its leaderboards.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.card import BEGIN, CARD, END, EVAL_RESULTS
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import claim, make_folder, real, write_text
from hydrasurgeon.files.foreign import code, visible
from hydrasurgeon.files.manifest import DataRecord
from hydrasurgeon.files.processes import is_main_process
from hydrasurgeon.measuring.results import Result
from hydrasurgeon.options.measuring import EvaluateOptions
from hydrasurgeon.report.columns import ABSENT, QUALITY, tables
from hydrasurgeon.report.markdown import table
from hydrasurgeon.sharing.output import card_repository, publish_card

HASH = "sha256"
"""What our results in a model-index have among their data set's arguments, and others have not."""
SPEC = re.compile(r"hf:(?P<id>\w[\w.-]*/\w[\w.-]*)(?:/(?P<config>\w[\w.-]*))?:(?P<split>\w[\w.-]*)")
"""A data set of the hub with its organisation: without one the hub knows no leaderboard."""


@dataclass(frozen=True)
class Claimed:
    """Model cards that are this command's to write."""

    opened: Sequence[Checkpoint]
    cards: Sequence[Path | None]
    """The card of each checkpoint; empty if none is to be written."""
    repository: str | None

    def write(
        self,
        results: Sequence[Result],
        data: Mapping[str, DataRecord],
        settings: Mapping[str, Any],
        *,
        bars: bool,
    ) -> tuple[tuple[Path, ...], str | None]:
        """Put each checkpoint's result into its card, and upload it; what was written, and the
        address.

        `data` says under which heading each set was used.
        """
        written: list[Path] = []
        for path, result in zip(self.cards, results, strict=False):
            if path is not None:
                write_text(
                    path, with_measured(path.read_text(encoding="utf-8"), result, data, settings)
                )
                written.append(path)
                # Of a part of the samples no leaderboard is made.
                entry = (
                    None
                    if settings["limit"] is not None
                    else leaderboard_entry(result, next(iter(data.values())))
                )
                if entry is not None:
                    written.append(write_entry(path.parent, entry))
        if self.repository is None or not written or not is_main_process():
            return tuple(written), None
        manifest = next(
            each.manifest for each, card in zip(self.opened, self.cards, strict=False) if card
        )
        return tuple(written), publish_card(written, manifest, at=self.repository, bars=bars)


def claimed_cards(arguments: EvaluateOptions, opened: Sequence[Checkpoint]) -> Claimed:
    """The cards that are to be written, and the repository, before any work."""
    cards = [_card(checkpoint) for checkpoint in opened] if arguments.card else []
    if arguments.card and not any(cards):
        raise UsageError(
            "--card: no checkpoint is a directory with a model card",
            hint="Write one with `-o DIR/`; cards of others, without our markers, are left alone.",
        )
    for path in {card: None for card in cards if card is not None}:
        claim(path, option="--card", force=True)
    return Claimed(opened, cards, card_repository(arguments.push_to_hub, cards))


def _card(checkpoint: Checkpoint) -> Path | None:
    """A checkpoint's model card, where it is a local directory that has one with our markers."""
    path = real(checkpoint.path / CARD)
    if checkpoint.hub_id is not None or not path.is_file():
        return None
    with contextlib.suppress(UnicodeDecodeError):
        return path if _place(path.read_text(encoding="utf-8")) is not None else None
    return None


def with_measured(
    card: str, result: Result, data: Mapping[str, DataRecord], settings: Mapping[str, Any]
) -> str:
    """The card with this result, and no other, between its markers."""
    place = _place(card)
    assert place is not None
    part = settings["limit"] is not None
    text = f"{card[: place[0]]}\n{measured(result, data, settings)}\n{card[place[1] :]}"
    return _indexed(text, result, next(iter(data.values())), part=part)


def _place(card: str) -> tuple[int, int] | None:
    """Where the text between the markers begins and ends; a marker has a line to itself, which no
    name has.
    """
    start = card.find(f"\n{BEGIN}\n")
    # The first end behind it: what people write further down, perhaps with a copy of the section,
    # is theirs.
    end = card.find(f"\n{END}\n", start)
    return None if start < 0 or end < 0 else (start + len(f"\n{BEGIN}"), end + len("\n"))


def measured(result: Result, data: Mapping[str, DataRecord], settings: Mapping[str, Any]) -> str:
    """One result as Markdown: the report's tables with a line for each data set, and what it was
    measured on.
    """
    parts: list[str] = []
    for each in tables([result]):
        rows: dict[str, dict[str, str]] = {}
        for column in each.columns:
            if column.metric.key != "latency_ms":  # another time on every machine
                rows.setdefault(column.group, {})[column.metric.head] = column.cells[0].text
        heads = list(dict.fromkeys(head for row in rows.values() for head in row))
        lines = [
            [code(name or each.names[0]), *(row.get(h, ABSENT) for h in heads)]
            for name, row in rows.items()
        ]
        parts += [table([each.title, *heads], lines), *filter(None, [each.note])]
    parts += ["\n".join(_seen(data)), _how(settings, decided=result.id.coverage is not None)]
    return "\n\n".join(parts)


def _seen(data: Mapping[str, DataRecord]) -> Iterable[str]:
    for use, record in data.items():
        yield f"- {use}: {code(record.spec)}, {record.rows} samples, sha256 {record.sha256}"


def _how(settings: Mapping[str, Any], *, decided: bool) -> str:
    """How it was measured; of several checkpoints in one run, some may have a decision state and
    others not.
    """
    state: dict[str, Any] = dict.fromkeys(("temperature", "ood_score"), "of the decision state")
    if not decided:
        state = {"temperature": 1.0, "ood_score": "msp"}
    read = {
        key: other if settings[key] == "decision" else settings[key] for key, other in state.items()
    }
    facts = [
        f"temperature {read['temperature']}",
        f"OOD score {read['ood_score']} (OOD is the positive class)",
    ]
    facts += [
        f"{name} {settings[name]}" for name in ("limit", "seed") if settings[name] is not None
    ]
    return f"By `hydrasurgeon eval`: {', '.join(facts)}, {settings['dtype']}."


def _indexed(card: str, result: Result, data: DataRecord, *, part: bool) -> str:
    """The card whose front matter gives the result in the hub's words; what others measured stays
    there.
    """
    import yaml  # type: ignore[import-untyped]
    from huggingface_hub import EvalResult, ModelCard

    try:
        model_card = ModelCard(card)
    except (ValueError, yaml.YAMLError):
        return card
    about: Any = model_card.data
    task = about.get("pipeline_tag")
    if not isinstance(task, str):
        return card
    spec = visible(data.spec)
    samples = {HASH: data.sha256, **({"samples": data.rows} if part else {})}
    ours = [
        EvalResult(
            task_type=task,
            dataset_type=spec,
            dataset_name=spec,
            dataset_args=samples,
            metric_type=metric.key,
            metric_name=metric.name,
            metric_value=round(getattr(result.id, metric.key), 6),
        )
        for metric in QUALITY
    ]
    theirs = [each for each in about.eval_results or [] if HASH not in (each.dataset_args or {})]
    about.eval_results = theirs + ours
    about.model_name = about.model_name or visible(result.name)
    return str(model_card)


def leaderboard_entry(result: Result, data: DataRecord) -> dict[str, Any] | None:
    """The accuracy in the format that the hub's leaderboards read; None where the data are not on
    the hub.

    One entry is one number on one task of one data set
    (https://huggingface.co/docs/hub/eval-results), so calibration and OOD detection stay in the
    card. The hub shows it where the data set is registered as a benchmark.
    """
    match, accuracy = SPEC.fullmatch(data.spec), result.id.accuracy
    if match is None or accuracy is None:
        return None
    notes = (
        f"accuracy in %, {data.rows} samples of {match['split']}, sha256 {data.sha256}; "
        "hydrasurgeon eval,"
        f" {result.members} member{'s' if result.members > 1 else ''}"
    )
    return {
        "dataset": {"id": match["id"], "task_id": match["config"] or "default"},
        "value": round(100 * accuracy, 4),
        "notes": notes,
    }


def write_entry(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Put a leaderboard entry beside a model card."""
    from huggingface_hub.utils import yaml_dump  # type: ignore[attr-defined]

    path = folder / EVAL_RESULTS
    make_folder(path.parent)
    write_text(path, yaml_dump([dict(entry)], sort_keys=False))
    return path
