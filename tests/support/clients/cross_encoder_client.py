"""Probabilities by sentence-transformers' CrossEncoder, which does not know us: a job as JSON on stdin,
{"folder", "file", "inputs"} (no file: torch), and a row of probabilities for each pair on stdout."""

import json
import sys

from sentence_transformers import CrossEncoder

sys.modules["hydrasurgeon"] = None  # type: ignore[assignment]
job = json.load(sys.stdin)
how = {}
if job["file"] is not None:
    how = {"backend": "onnx", "model_kwargs": {"file_name": job["file"]}}
model = CrossEncoder(job["folder"], device="cpu", **how)
pairs = [tuple(pair) for pair in job["inputs"]]
if model.config.num_labels == 1:
    print(json.dumps([[float(p)] for p in model.predict(pairs)]))
else:
    print(json.dumps(model.predict(pairs, apply_softmax=True).tolist()))
