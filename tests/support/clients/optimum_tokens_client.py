"""Entities by a pipeline with optimum's ORTModelForTokenClassification, which does not know us: a job as JSON on
stdin, {"folder", "file", "inputs"}, and the entities of each text on stdout."""

import json
import sys

from optimum.onnxruntime import ORTModelForTokenClassification
from transformers import AutoTokenizer, pipeline

sys.modules["hydrasurgeon"] = None  # type: ignore[assignment]
job = json.load(sys.stdin)
model = ORTModelForTokenClassification.from_pretrained(
    job["folder"], subfolder="onnx", file_name=job["file"]
)
tokenizer = AutoTokenizer.from_pretrained(job["folder"])
classify = pipeline(
    "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first"
)
fields = ("start", "end", "entity_group")
print(json.dumps([[[entity[f] for f in fields] for entity in classify(t)] for t in job["inputs"]]))
