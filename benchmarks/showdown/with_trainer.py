# mypy: ignore-errors
"""Fine-tuned by transformers' Trainer with its defaults, a temperature fitted on VAL."""

import numpy as np
import torch
from datasets import load_dataset
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from transformers import AutoModelForSequenceClassification as Classifier
from transformers import AutoTokenizer, Trainer, TrainingArguments


def train(data, out, start, steps, seed):
    rows = load_dataset("json", data_files=data, split="train")
    tokenizer = AutoTokenizer.from_pretrained(start)
    rows = rows.map(lambda row: tokenizer(row["text"], truncation=True))
    model = Classifier.from_pretrained(start, num_labels=len(set(rows["label"])))
    args = TrainingArguments(
        out, max_steps=steps, seed=seed, save_strategy="no", report_to="none", use_cpu=True
    )
    Trainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer).train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


class Model:
    def __init__(self, out):
        self.tokenizer = AutoTokenizer.from_pretrained(out)
        self.model = Classifier.from_pretrained(out).eval()

    def read(self, texts):
        tokens = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            return self.model(**tokens).logits.numpy()

    def answer(self, texts):
        return softmax(self.read(texts), axis=1)

    def calibrate(self, read, labels, risk):
        rows = np.arange(len(labels))
        self.temperature = minimize_scalar(
            lambda t: -log_softmax(read / t, axis=1)[rows, labels].mean(), bounds=(0.05, 20)
        ).x
        best = softmax(read / self.temperature, axis=1).max(axis=1)
        order = np.argsort(-best)
        wrong = (read.argmax(axis=1) != labels)[order].cumsum() / (rows + 1)
        kept = np.flatnonzero(wrong <= risk)
        self.threshold = best[order][kept[-1]] if len(kept) else 2.0

    def decide(self, read):
        p = softmax(read / self.temperature, axis=1)
        ranked = -np.sort(-p, axis=1)
        least = ranked[np.arange(len(p)), (ranked.cumsum(axis=1) < 0.9).sum(axis=1)]
        return p, 1 - p.max(axis=1), p.max(axis=1) >= self.threshold, p >= least[:, None]
