# mypy: ignore-errors
"""SetFit by its README, optimum's export to ONNX in 8 bits, sets and thresholds by MAPIE."""

import joblib
import numpy as np
import onnxruntime
from datasets import load_dataset
from mapie.classification import SplitConformalClassifier
from mapie.risk_control import BinaryRisk, MultiClassificationLTTController, abstention_rate
from mapie.risk_control.fwer_control import FWERFixedSequenceTesting
from optimum.onnxruntime import ORTModelForFeatureExtraction, ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig
from setfit import SetFitModel, Trainer, TrainingArguments
from setfit.exporters.utils import mean_pooling
from transformers import AutoTokenizer


def train(data, out, start, steps, seed):
    rows = load_dataset("json", data_files=data, split="train")
    model = SetFitModel.from_pretrained(start)
    args = TrainingArguments(output_dir=out, max_steps=steps, seed=seed, save_strategy="no")
    Trainer(model=model, args=args, train_dataset=rows).train()
    model.save_pretrained(out)
    export = ORTModelForFeatureExtraction.from_pretrained(out, export=True)
    export.save_pretrained(f"{out}/onnx")
    vnni = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=False)
    ORTQuantizer.from_pretrained(f"{out}/onnx").quantize(vnni, save_dir=f"{out}/int8")


class Model:
    def __init__(self, out):
        one = onnxruntime.SessionOptions()
        one.intra_op_num_threads = 1
        self.tokenizer = AutoTokenizer.from_pretrained(out)
        self.head = joblib.load(f"{out}/model_head.pkl")
        self.body = ORTModelForFeatureExtraction.from_pretrained(
            f"{out}/int8", file_name="model_quantized.onnx", session_options=one
        )

    def read(self, texts):
        tokens = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        outputs = self.body(**tokens)
        pooled = mean_pooling(outputs["last_hidden_state"], tokens["attention_mask"]).numpy()
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    def answer(self, texts):
        return self.head.predict_proba(self.read(texts))

    def calibrate(self, read, labels, risk):
        self.sets = SplitConformalClassifier(self.head, confidence_level=0.9)
        self.sets.conformalize(read, labels)
        right = BinaryRisk(lambda y, p: p == y, lambda y, p: p == p, higher_is_better=True)
        self.control = MultiClassificationLTTController(
            self.head.predict_proba,
            [right],
            [1 - risk],
            confidence_level=0.95,
            best_predict_param_choice=abstention_rate,
            classes=self.head.classes_,
            # From the surest down: its default, Bonferroni-Holm, lets nothing be answered here.
            list_predict_params=np.linspace(0.99, 0, 100),
            fwer_method=FWERFixedSequenceTesting(n_starts=10),
        )
        self.control.calibrate(read, labels)

    def decide(self, read):
        probabilities = self.head.predict_proba(read)
        threshold = self.control.best_predict_param
        answered = probabilities.max(axis=1) >= (2 if threshold is None else threshold)
        return (
            probabilities,
            1 - probabilities.max(axis=1),
            answered,
            self.sets.predict_set(read)[1],
        )
