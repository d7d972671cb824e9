"""A command in a file: TOML that holds its options, to be read, kept and run again.

command = "prune"
checkpoint = "vit.safetensors"
method = "taylor"
keep = 8
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydrasurgeon.commands import Command
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.foreign import read_text
from hydrasurgeon.files.history import typed
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.options.base import Options, about

SUFFIX = ".toml"
FLAG = "--config"
"""What a file is given by; as a command's first word it needs none."""
MAX_BYTES = 1 << 20


def expanded(words: list[str], command: Command) -> list[str]:
    """A command line with what its file holds; what is typed replaces what the file says."""
    path, rest = _file(words)
    if path is None:
        return words
    spoken = {word.partition("=")[0] for word in rest if word.startswith("-")}
    return [words[0], *_words(Path(path), command, spoken), *rest]


def _file(words: list[str]) -> tuple[str | None, list[str]]:
    """The file that a command line names, and what else it holds."""
    first, rest = words[1:2], words[1:]
    if first and first[0].endswith(SUFFIX) and not first[0].startswith("-"):
        return first[0], rest[1:]
    for at, word in enumerate(rest):
        flag, equals, value = word.partition("=")
        if flag == FLAG and equals:
            return value, rest[:at] + rest[at + 1 :]
        if flag == FLAG and at + 1 < len(rest):
            return rest[at + 1], rest[:at] + rest[at + 2 :]
    return None, rest


def _words(path: Path, command: Command, spoken: set[str]) -> Iterator[str]:
    """What a file holds, as it is typed, but for what somebody typed."""
    record = command.options
    fields = {field.alias or name: name for name, field in record.ordered().items() if about(field)}
    for key, value in _table(path, command).items():
        name = fields.get(key.replace("-", "_"))
        if name is None:
            hint = (
                f"`hydrasurgeon {command.name} -h` lists the options; here, _ stands for their -."
            )
            what = f"{path}: {key}: no such option{did_you_mean(key, fields)}"
            raise UsageError(what, hint=hint)
        if not _can_be_typed(value):
            raise UsageError(f"{path}: {key}: expected text, a number, true, false or a list")
        flags = [each for flag in record.flags(name) for each in flag.split("/")]
        if about(record.model_fields[name]).get("argument"):
            yield from map(str, value if isinstance(value, list) else [value])
        elif value is False and flags[-1].startswith("--no-"):
            yield flags[-1]
        elif not spoken & {*flags}:
            yield from typed(record.flag(name).partition("/")[0], value)


def _table(path: Path, command: Command) -> dict[str, Any]:
    """A file's options, which are those of the command where it names one."""
    try:
        table = tomllib.loads(read_text(path, most=MAX_BYTES, error=UsageError))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not TOML: {error}") from None
    named = table.pop("command", command.name)
    if named != command.name:
        hint = f"Run `hydrasurgeon {named} {path}`."
        raise UsageError(f"{path}: holds the options of {named}, not of {command.name}", hint=hint)
    return table


def _can_be_typed(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str | int | float) for each in value)
    if isinstance(value, dict):
        return _can_be_typed([*value.values()])
    return isinstance(value, str | int | float)


def written(command: str, options: Options) -> str:
    """Options as such a file: those that are not at their default."""
    return as_toml(command, dict(_given(options)))


def as_toml(command: str, values: Mapping[str, Any]) -> str:
    """A command with options by name as such a file; None and False ask for nothing."""
    lines = [
        f"{name} = {_value(value)}"
        for name, value in {"command": command, **values}.items()
        if value is not None and value is not False
    ]
    return "\n".join(lines) + "\n"


def _given(options: Options) -> Iterator[tuple[str, Any]]:
    """Options by name, those that are typed without one first."""
    fields = type(options).ordered()
    for name in dict.fromkeys([*options.arguments(), *fields]):
        field = fields[name]
        value = getattr(options, name)
        if about(field) and value is not None and value != field.default:
            yield field.alias or name, value


def _value(value: Any) -> str:
    """A value in TOML, whose texts are JSON's but for one character."""
    if isinstance(value, Mapping):
        pairs = [f"{json.dumps(str(key))} = {_value(each)}" for key, each in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
