"""OOD scores, higher = more unfamiliar: `on_logits` needs nothing but logits, the others are fitted
on features.
"""
