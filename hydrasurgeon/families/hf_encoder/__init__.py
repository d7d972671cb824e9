"""transformers' encoders with a classifier."""
