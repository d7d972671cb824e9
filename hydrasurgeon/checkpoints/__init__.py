"""Find, open and write checkpoints, in our own files and in the families' directories."""
