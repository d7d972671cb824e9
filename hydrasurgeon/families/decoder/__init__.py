"""transformers' decoders with a classifier on the last token."""
