"""Names that files of others give to things: short, of one line, and fit to be written and shown."""

from __future__ import annotations

import os
from pathlib import Path
from unicodedata import category

# Characters of a name.
MAX_NAME = 500
# Unicode's categories of control characters, lone surrogates (bytes that were not UTF-8) and ends of lines.
UNNAMEABLE = {"Cc", "Cs", "Zl", "Zp"}


def is_name(text: str) -> bool:
    return 0 < len(text.strip()) <= len(text) <= MAX_NAME and not UNNAMEABLE & set(map(category, text))


def portable(spec: str) -> str:
    """A path, or LIST@ROOT of two, without the folders of this machine: what files record is the same everywhere."""
    return "@".join(Path(part).name if os.path.isabs(part) else part for part in spec.split("@"))
