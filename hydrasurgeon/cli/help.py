"""Help pages: commands and options in groups, common ones first, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup

from hydrasurgeon import commands
from hydrasurgeon.commands import COMMANDS, NAMED, Command
from hydrasurgeon.errors import UsageError
from hydrasurgeon.options.base import ENGINES, FORMATS, GROUPS, RUNS, WRITTEN, Options, about

WIDEST = 120
"""Columns of a help page, in a terminal that is wider."""
EXAMPLES = "Examples, in the folder hydra-demo that `hydrasurgeon demo` writes"
"""Heading of the examples."""
ARGUMENTS = "Arguments"
"""The group of what has no `--name`."""


def sections(command: Command) -> dict[str, list[tuple[str, str]]]:
    """Return a command's options in groups, each as it is typed and with its meaning. Required ones
    and those of the examples come first.
    """
    record = command.options
    rows: dict[str, list[tuple[str, str]]] = {group: [] for group in (ARGUMENTS, *GROUPS)}
    shown = {word for line in command.examples for word in line.split()}
    fields = {name: field for name, field in record.ordered().items() if about(field)}

    def rank(name: str) -> int:
        return 0 if fields[name].is_required() else 1 if shown & {*record.flags(name)} else 2

    for name in sorted(fields, key=rank):
        field = fields[name]
        rows[str(about(field).get("group", ARGUMENTS))].append(
            (_typed(record, name), _meant(field))
        )
    if "json_" not in fields:
        rows[WRITTEN].append(("--json", "Print the result as JSON on stdout."))
    rows[RUNS] += [
        ("-q, --quiet", "Print nothing but errors and measurements."),
        ("-h, --help", "Show this page and exit."),
    ]
    return {title: lines for title, lines in rows.items() if lines}


def _typed(record: type[Options], name: str) -> str:
    field = record.model_fields[name]
    metavar, kinds = about(field)["metavar"], get_args(field.annotation)
    if not metavar and kinds and all(isinstance(kind, str) for kind in kinds):
        metavar = "|".join(kinds)
    if metavar and "{names}" in metavar:
        metavar = metavar.replace("{names}", "|".join(choice.name for choice in _choices(field)))
    return f"{', '.join(record.flags(name))} {metavar or ''}".strip()


def _choices(field: FieldInfo) -> Sequence[Any]:
    """Return the objects that an option chooses from."""
    if about(field)["reads"] == ENGINES:
        from hydrasurgeon import engines

        return engines.ENGINES
    assert about(field)["reads"] == FORMATS
    from hydrasurgeon.sharing import formats

    return formats.FORMATS


def _meant(field: FieldInfo) -> str:
    """Return the help of an option with its default."""
    default, text = about(field).get("unset") or field.default, str(field.description)
    if "{choices}" in text:
        listed = "; ".join(f"{choice.name}: {choice.help}" for choice in _choices(field))
        text = text.replace("{choices}", listed)
    if field.is_required():
        return f"{text} [required]"
    if default is None or isinstance(default, bool | tuple) or default == "":
        return text
    return f"{text} [default: {default}]"


def takes_one_value(parameter: Any) -> bool:
    """Return True for an option whose second value would replace the first."""
    if parameter.param_type_name != "option" or parameter.multiple:
        return False
    return not parameter.is_flag or bool(parameter.secondary_opts)


class Page(TyperCommand):
    """A command whose options stand in groups."""

    about: Command

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments of the usage line, required ones first."""
        record = self.about.options
        names, fields = record.arguments(), record.model_fields
        pieces = []
        for name in names:
            typed = _typed(record, name)
            pieces.append(typed if fields[name].is_required() else f"[{typed}]")
        for name, field in fields.items():
            if field.is_required() and name not in names:
                pieces.append(_typed(record, name).replace("-o, --out", "-o"))
        return [*pieces, "[OPTIONS]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice and would silently keep the last value."""
        _, _, parameters = self.make_parser(ctx).parse_args(args=[*args])
        for parameter in parameters:
            if parameters.count(parameter) > 1 and takes_one_value(parameter):
                flag = max(parameter.opts, key=len)
                raise UsageError(
                    f"{flag} is given {parameters.count(parameter)} times, and takes one value",
                    hint=f"Give {flag} once.",
                )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, lines in sections(self.about).items():
            with formatter.section(title):
                formatter.write_dl(lines)
        examples(self.about, formatter)


class Plain(TyperCommand):
    """A command that takes next to nothing."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        examples(NAMED[str(self.name)], formatter)


class Pages(TyperGroup):
    """The list of commands, in groups and with whole sentences."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups = {command.name: command.group for command in COMMANDS}
        for group in commands.GROUPS:
            rows = [
                (f"{command.name:9}", sentence(command.help or ""))
                for command in sorted(
                    self.commands.values(), key=lambda command: [*groups].index(str(command.name))
                )
                if groups[str(command.name)] == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)
        options = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in options if record])
        formatter.write_paragraph()
        formatter.write_text(
            "`hydrasurgeon help COMMAND` lists a command's options, with examples."
        )


def sentence(text: str) -> str:
    """Return the first sentence of a help text."""
    return " ".join(text.partition("\n\n")[0].split())


def examples(command: Command, formatter: Any) -> None:
    """Write lines to copy, unbroken however long they are."""
    with formatter.section(EXAMPLES if command.record else "Examples"):
        for line in command.examples:
            typed = f"hydrasurgeon {command.name} {line}".strip()
            formatter.write(f"{'':>{formatter.current_indent}}{typed}\n")
