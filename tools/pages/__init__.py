"""A module for each page, or passage of a page, that tools/render_docs.py writes from result files."""
