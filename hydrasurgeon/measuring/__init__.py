"""Metrics and costs of models, tables of results, and data sets by role."""
