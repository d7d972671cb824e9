"""Probabilities by optimum's ORTModelForSequenceClassification, which does not know us: a job as JSON on
stdin, {"folder", "file", "inputs"}, and a row of probabilities for each input on stdout."""

import json
import sys

import torch
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer

sys.modules["hydrasurgeon"] = None  # type: ignore[assignment]
job = json.load(sys.stdin)
model = ORTModelForSequenceClassification.from_pretrained(
    job["folder"], subfolder="onnx", file_name=job["file"]
)
tokenizer = AutoTokenizer.from_pretrained(job["folder"])
texts = [entry if isinstance(entry, str) else tuple(entry) for entry in job["inputs"]]
logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
probs = torch.sigmoid(logits) if logits.shape[1] == 1 else torch.softmax(logits, dim=1)
print(json.dumps(probs.tolist()))
