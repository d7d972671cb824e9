"""Training of members: the loop, its start, and the recipes."""
