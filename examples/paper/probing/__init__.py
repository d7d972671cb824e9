"""Probe of a model's inside: curvature under noise (paper B.1), and how well its heads separate
OOD data (B.2).
"""
