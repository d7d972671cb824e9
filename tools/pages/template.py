"""Pages by jinja2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=False,
)


def rendered(page: str, **values: Any) -> str:
    """Render a page's template with these values."""
    return ENVIRONMENT.get_template(f"{page}.md.j2").render(**values).rstrip() + "\n"
