"""Hostile inputs by the nine ways in which files enter, counted and seeded; `python -m fuzz` runs them by the
million."""
