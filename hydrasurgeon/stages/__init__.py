"""The stages of building a hydra: each reads checkpoints, writes checkpoints, and records what it
did.
"""
