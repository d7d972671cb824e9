"""How members are tuned: the loop, what it starts from, and the recipes."""
