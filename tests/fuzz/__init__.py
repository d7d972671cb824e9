"""Hostile files of several kinds, drawn and seeded; `python -m fuzz` runs them by the thousand."""
