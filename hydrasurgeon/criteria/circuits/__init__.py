"""Greedy circuit extraction (paper D.1.2, Algorithm 1): one objective, three searches, resumable and shareable."""
