"""What a cascade costs, which one is chosen, and how it answers on data beside its hydra."""
