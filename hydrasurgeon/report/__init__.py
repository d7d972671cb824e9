"""The report as people read it: tables for the terminal, Markdown, model cards and README, and one
HTML page.
"""
