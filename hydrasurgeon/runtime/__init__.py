"""Checkpoints as live modules: classifiers, hydras, and how they run."""
