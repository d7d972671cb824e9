# mypy: ignore-errors
"""SetFit by its README, and a logistic regression on the untrained body, for tables of few rows."""

import time
from pathlib import Path

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict


def tuned(texts, labels, start, out, steps, seed):
    """Tune a body and its head with SetFit's defaults, or for as many steps."""
    model = SetFitModel.from_pretrained(start)
    args = TrainingArguments(out, max_steps=steps, seed=seed, save_strategy="no", report_to="none")
    rows = Dataset.from_dict({"text": list(texts), "label": labels.tolist()})
    Trainer(model=model, args=args, train_dataset=rows).train()
    return lambda unread: np.log(model.predict_proba([*unread], as_numpy=True).clip(1e-12))


def setfit(texts, labels, tables, start, out, steps, folds, seed):
    """Return log-probabilities of each table, those of the held-out rows, and CPU seconds."""
    answer = tuned(texts, labels, start, out, steps, seed)
    seconds = [time.process_time()]
    answers = {name: answer(table) for name, table in tables.items()}
    splits = [*StratifiedKFold(5, shuffle=True, random_state=seed).split(texts, labels)][:folds]
    began = time.process_time()
    held = [np.zeros((0, answers["test"].shape[1]))]
    for seen, unseen in splits:
        answer = tuned(np.array(texts)[seen], labels[seen], start, out, steps, seed)
        held.append(answer(np.array(texts)[unseen]))
    answers["held"] = np.concatenate(held)
    answers["held labels"] = labels[[row for _, unseen in splits for row in unseen]]
    seconds.append(seconds[0] + time.process_time() - began)
    return answers | {"seconds": np.array(seconds)}


def regression(texts, labels, tables, start, out, steps, folds, seed):
    """Return the same for scikit-learn's default; the folds are of the head, as the body is not tuned."""
    body, head = SentenceTransformer(start), LogisticRegression(max_iter=1000)
    rows = body.encode([*texts])
    head.fit(rows, labels)
    seconds = [time.process_time()]
    answers = {}
    for name, table in tables.items():
        kept = Path(out).parent / f"embedded {len(table)} {name}.npy"
        if not kept.exists():
            np.save(kept, body.encode(table))
        answers[name] = head.predict_log_proba(np.load(kept))
    began = time.process_time()
    splits = StratifiedKFold(5, shuffle=True, random_state=seed)
    answers["held"] = cross_val_predict(head, rows, labels, cv=splits, method="predict_log_proba")
    seconds.append(seconds[0] + time.process_time() - began)
    return answers | {"held labels": labels, "seconds": np.array(seconds)}
