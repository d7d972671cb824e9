"""What `--help` prints: commands and options in groups, what people need first, two examples for
each command.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup

from hydrasurgeon.options.base import GROUPS, RUNS, WRITTEN, Options, about

WIDEST = 120
"""Columns of a help page, in a terminal that is wider."""
ARGUMENTS = "Arguments"
"""The group of what has no `--name`."""
COMMANDS = {
    "Make a hydra": ("build", "score", "prune", "finetune", "fuse", "calibrate"),
    "Measure": ("eval", "bench", "compare", "probe"),
    "Use": ("predict", "serve", "monitor", "export"),
    "Trust": ("inspect", "verify", "replay"),
    "More": ("demo", "schema", "help"),
}
"""The commands in groups, in the order in which they are listed."""
EXAMPLES = {
    "build": (
        "vit --data train/ --val val/ --budget macs=1.5 -o hydra.safetensors",
        (
            "vit --data train/ --val val/ --ood others/ --criteria taylor,fisher --candidates 16 "
            "-o "
            "hydra2.safetensors"
        ),
    ),
    "score": (
        "vit --method taylor --data val/",
        (
            "vit --method circuit --objective acc --search attribution --data val/ --limit 500 -o "
            "scored.safetensors"
        ),
    ),
    "prune": (
        "vit --method taylor --keep 8 -o m1.safetensors",
        (
            "vit --method taylor --sample 36/72 --seed 1 --compensate lstsq --data val/ -o "
            "m2.safetensors"
        ),
    ),
    "finetune": (
        "m1 --data train/ --val val/ --freeze mlp -o t1.safetensors",
        "m2 --data train/ --teacher vit --recipe teach --freeze mlp -o t2.safetensors",
    ),
    "fuse": ("t1 t2 -o pair.safetensors", "m1 m2 --mlp separate --check val/ -o pair2.safetensors"),
    "calibrate": (
        "pair --data val/ -o ready.safetensors",
        "pair --data val/ --fit-data train/ --ood others/ --cascade -o ready2.safetensors",
    ),
    "eval": (
        "vit pair --data test/ --ood far:others=others/",
        "vit pair --data test/ --ci 0.95 --html report.html",
    ),
    "bench": ("pair --backbone vit --batch 1,16", "pair --vs t1 t2 --data test/"),
    "compare": ("m1 m2", "pair.safetensors#0 pair.safetensors#1"),
    "probe": ("vit --data val/", "vit --data val/ --ood others=others/ --keep 8"),
    "predict": ("ready --data test/ -o answers.jsonl", "ready --data test/ --limit 3"),
    "serve": ("ready", "ready --host 0.0.0.0 --port 80 --cascade --answers answers.jsonl"),
    "monitor": ("answers.jsonl --against ready", "answers.jsonl --against ready --json"),
    "export": ("pair -o pair.onnx", "m1 --format padded -o whole/"),
    "inspect": ("pair", "pair --json"),
    "verify": ("pair", "pair --parents ."),
    "replay": ("m1 --from . --dry-run", "m1 --from . -o again/"),
    "demo": ("", "-o somewhere/"),
    "schema": ("", "> manifest.schema.json"),
    "help": ("", "prune"),
}
"""Two lines for each command, as they are typed behind its name; they run in this order in one
folder.
"""


def sections(name: str, record: type[Options]) -> dict[str, list[tuple[str, str]]]:
    """A command's options in groups, each as it is typed and what it means: required ones and those
    of the examples first.
    """
    rows: dict[str, list[tuple[str, str]]] = {group: [] for group in (ARGUMENTS, *GROUPS)}
    shown = {word for line in EXAMPLES.get(name, ()) for word in line.split()}
    fields = {each: field for each, field in record.ordered().items() if about(field)}

    def rank(each: str) -> int:
        return 0 if fields[each].is_required() else 1 if shown & {*record.flags(each)} else 2

    for each in sorted(fields, key=rank):
        field = fields[each]
        rows[str(about(field).get("group", ARGUMENTS))].append(
            (_typed(record, each), _meant(field))
        )
    if "json_" not in fields:
        rows[WRITTEN].append(("--json", "Print the result as JSON on stdout."))
    rows[RUNS] += [
        ("-q, --quiet", "Print no progress and no notes."),
        ("-h, --help", "Show this page and exit."),
    ]
    return {title: lines for title, lines in rows.items() if lines}


def _typed(record: type[Options], name: str) -> str:
    field = record.model_fields[name]
    metavar, kinds = about(field)["metavar"], get_args(field.annotation)
    if not metavar and kinds and all(isinstance(kind, str) for kind in kinds):
        metavar = "|".join(kinds)
    return f"{', '.join(record.flags(name))} {metavar or ''}".strip()


def _meant(field: FieldInfo) -> str:
    """The help of an option, and what holds where it is not given."""
    default = about(field).get("unset") or field.default
    if field.is_required():
        return f"{field.description} [required]"
    if default is None or isinstance(default, bool | tuple) or default == "":
        return str(field.description)
    return f"{field.description} [default: {default}]"


class Page(TyperCommand):
    """A command whose options stand in groups."""

    record: type[Options]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What must be given, then the rest."""
        names, fields = self.record.arguments(), self.record.model_fields
        pieces = [
            _typed(self.record, name)
            if fields[name].is_required()
            else f"[{_typed(self.record, name)}]"
            for name in names
        ]
        required = [
            name for name, field in fields.items() if field.is_required() and name not in names
        ]
        return [
            *pieces,
            *(_typed(self.record, name).replace("-o, --out", "-o") for name in required),
            "[OPTIONS]",
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, lines in sections(str(self.name), self.record).items():
            with formatter.section(title):
                formatter.write_dl(lines)
        examples(str(self.name), formatter)


class Plain(TyperCommand):
    """A command that takes next to nothing."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        examples(str(self.name), formatter)


class Pages(TyperGroup):
    """The list of commands, in groups and with whole sentences."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        named = [name for names in COMMANDS.values() for name in names]
        others = [name for name in self.commands if name not in named]
        for title, names in COMMANDS.items():
            there = [
                self.commands[name]
                for name in (*names, *(others if title == "More" else ()))
                if name in self.commands
            ]
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{each.name:9}", sentence(each.help or "")) for each in there]
                )
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    record
                    for parameter in self.get_params(ctx)
                    if (record := parameter.get_help_record(ctx))
                ]
            )
        formatter.write_paragraph()
        formatter.write_text(
            "`hydrasurgeon help COMMAND` shows what a command can be told, with examples."
        )


def sentence(text: str) -> str:
    """The first sentence of a help text."""
    return " ".join(text.partition("\n\n")[0].split())


def examples(name: str, formatter: Any) -> None:
    """Two lines that can be copied, whole however long they are."""
    with formatter.section("Examples"):
        for line in EXAMPLES.get(name, ()):
            formatter.write(
                f"{'':>{formatter.current_indent}}{f'hydrasurgeon {name} {line}'.strip()}\n"
            )
