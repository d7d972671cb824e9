"""The report as people read it: one HTML file, Markdown."""

from hydrasurgeon.measuring.page.document import Material, document
from hydrasurgeon.measuring.page.texts import markdown


def written(kind: str, material: Material) -> str:
    """The report as `html` or `markdown`."""
    return {"html": document, "markdown": markdown}[kind](material)
