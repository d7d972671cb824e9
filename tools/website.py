"""The site's pages that do not lie in docs/: README, the examples' pages, and the options of every command.

mkdocs calls this as a hook (mkdocs.yml); `make docs` builds the site.
"""

from __future__ import annotations

import html
import os
import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    **{f"{name}.md": f"{name}.md" for name in ("SECURITY", "CONTRIBUTING")},
    **{
        path: path
        for path in (f"examples/{name}/README.md" for name in ("ci", "decisions", "paper", "serve"))
    },
}
"""Files outside docs/ → where they lie in the site."""
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A link within the repository: its text, its target, its anchor."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    texts = {uri: (ROOT / path).read_text(encoding="utf-8") for path, uri in PAGES.items()}
    for uri, content in {**texts, "reference/options.md": options()}.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Convert links within the repository to links within the site."""
    uri = page.file.src_uri
    source = next((path for path, at in PAGES.items() if at == uri), f"docs/{uri}")
    return LINK.sub(lambda link: relinked(link, source, uri), markdown)


def relinked(link: re.Match[str], source: str, uri: str) -> str:
    """Convert a link of the file `source`, at `uri` in the site. Code is not part of the site, so
    its link becomes text.
    """
    text, target, anchor = link.group(1), link.group(2), link.group(3) or ""
    path = os.path.normpath(os.path.join(os.path.dirname(source), target))
    if (ROOT / path / "README.md").exists():
        path = f"{path}/README.md"
    if path in PAGES:
        path = PAGES[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return text
    else:
        return link.group(0)
    return f"[{text}]({os.path.relpath(path, os.path.dirname(uri) or '.')}{anchor})"


def options() -> str:
    """Return the page of all commands, with what `--help` prints for each."""
    from hydrasurgeon.cli.help import sections
    from hydrasurgeon.commands import COMMANDS

    parts = [
        "# Options of every command",
        "`hydrasurgeon help COMMAND` prints the same. The examples run in the folder `hydra-demo` that `hydrasurgeon demo` writes.",
    ]
    for command in COMMANDS:
        if not command.record:
            continue
        lines = "\n".join(f"hydrasurgeon {command.name} {line}" for line in command.examples)
        parts += [
            f"## {command.name}",
            cleandoc(str(command.options.__doc__)),
            f"```bash\n{lines}\n```",
        ]
        for title, rows in sections(command).items():
            cells = [f"| <code>{cell(typed)}</code> | {cell(meant)} |" for typed, meant in rows]
            parts.append("\n".join([f"| {title} | |", "|---|---|", *cells]))
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """Escape text for a cell of a table in Markdown and HTML."""
    return (
        html.escape(text, quote=False)
        .replace("|", "&#124;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
    )
