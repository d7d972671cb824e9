"""The report as people read it: one HTML file, Markdown, LaTeX."""

from hydrasurgeon.measuring.page.document import Material, document
from hydrasurgeon.measuring.page.texts import latex, markdown
