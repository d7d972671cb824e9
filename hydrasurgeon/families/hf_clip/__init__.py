"""CLIP and SigLIP in transformers' layout, as image classifiers."""
