"""Hostile manifests and configs, drawn and seeded; `python -m fuzz` runs them by the thousand."""
