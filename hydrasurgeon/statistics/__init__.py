"""Arithmetic on logits, features and labels: metrics, calibration, sets, abstention, OOD scores."""
