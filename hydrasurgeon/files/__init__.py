"""Bytes on disk: tensors, manifests, history, and writing each file whole or not at all."""
