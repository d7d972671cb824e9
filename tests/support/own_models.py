"""Files that docs/guide/your-model.md starts from: a folder of transformers with tables, and a timm
file with folders of pictures.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from row_files import write_lines
from tiny_families import CLASSES, FAMILIES, TEXT, WORDS, tokenizer, transformers_model

import hydrasurgeon as hs
from hydrasurgeon.data import open_data

LABELS = ("praise", "blame", "shrug")
"""Classes of the texts; the first words of all are theirs."""
PICTURES = {"train": 400, "val": 400, "test": 200}
"""Number of the demo's pictures in each folder."""


def texts(place: Path) -> None:
    """Write tables of sentences. Most contain a word of their class, and no two are equal."""
    seen: set[str] = set()
    for name, rows, seed in (("train", 1200, 0), ("val", 600, 1), ("test", 400, 2)):
        rng = np.random.default_rng(seed)
        lines = []
        while len(lines) < rows:
            label = int(rng.integers(CLASSES))
            word = WORDS[label if rng.random() < 0.9 else int(rng.integers(CLASSES))]
            words = [word, *rng.choice(WORDS[4:], size=rng.integers(3, 8))]
            text = " ".join(rng.permutation(words))
            if text not in seen:
                seen.add(text)
                lines.append([text, LABELS[label]])
        with (place / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text", "label"], *lines])


def probe_folder(place: Path, **rows: int) -> None:
    """Write tables, of which some are cut to so many `rows`, random/ and a probe on it."""
    texts(place)
    for name, count in rows.items():
        table = place / f"{name}.csv"
        table.write_text("".join(table.read_text().splitlines(keepends=True)[: count + 1]))
    FAMILIES["BERT"].write(place / "random")
    data = str(place / "train.csv")
    hs.finetune(place / "random", recipe="probe", data=data, out=place / "probe", device="cpu")


def text_folder(place: Path, family: str = "BERT") -> None:
    """Write reviews/, a trained model, and train.csv, val.csv, test.csv."""
    texts(place)
    FAMILIES[family].write(place / "random")
    _tuned(place, "reviews", seed=0)


def _tuned(place: Path, name: str, seed: int) -> None:
    """Train random/ further, and write the result as save_pretrained does."""
    tuned = place / f"tuned-{seed}"
    hs.finetune(
        place / "random",
        data=str(place / "train.csv"),
        set={"epochs": "4", "lr": "2e-3"},
        seed=seed,
        out=f"{tuned}/",
        device="cpu",
    )
    (place / name).mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tuned / file, place / name)


def embedder_folder(place: Path) -> None:
    """Write embedder/, a body in the layout of sentence-transformers: no classifier, pooled by the
    mean.
    """
    folder = place / "embedder"
    model = transformers_model("BertModel", TEXT)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.mul_(0.3)  # so that what comes out is mostly the words that went in
    model.save_pretrained(folder)
    tokenizer(folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))


def embedder_and_tables(place: Path) -> None:
    """Write random/, an embedder, and train.csv, val.csv and test.csv."""
    texts(place)
    FAMILIES["BERT"].write(place / "random")
    embedder_folder(place)


PRAISED = ("first", "second", "neither")
"""Classes of the pairs: which of two reviews praises the film."""


def pairs(path: Path, rows: int, seed: int) -> None:
    """Write a table of pairs of reviews, of which one may say that the film is good."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["one", "another", "praise"])
        for _ in range(rows):
            label = int(rng.integers(CLASSES))
            reviews = [_review(rng, [WORDS[0]] if place == label else []) for place in (0, 1)]
            writer.writerow(
                [*reviews, PRAISED[label if rng.random() < 0.95 else int(rng.integers(CLASSES))]]
            )


def _review(rng: np.random.Generator, praise: list[str]) -> str:
    return " ".join(rng.permutation([*praise, *rng.choice(WORDS[4:], size=rng.integers(2, 6))]))


def pair_folder(place: Path) -> None:
    """Write bert/, an untrained BERT, train.csv, val.csv, test.csv, and other.csv, pairs without
    such words.
    """
    for name, rows, seed in (("train", 1500, 0), ("val", 600, 1), ("test", 400, 2)):
        pairs(place / f"{name}.csv", rows, seed)
    rng = np.random.default_rng(3)
    rows = [" ".join(rng.choice(WORDS[2:4], size=rng.integers(3, 7))) for _ in range(600)]
    with (place / "other.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["one", "another"], *zip(rows[:300], rows[300:], strict=True)])
    FAMILIES["BERT"].write(place / "bert")
    config = place / "bert" / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | names))


def pictures(place: Path) -> None:
    """Write vit.safetensors, the demo's model, and its pictures in class folders below train/,
    val/, test/.
    """
    shutil.copy(
        Path(hs.__file__).with_name("demo") / "backbone.safetensors", place / "vit.safetensors"
    )
    for name, count in PICTURES.items():
        samples = open_data(f"demo:{name}", limit=count)
        for i in range(count):
            folder = place / name / f"{samples.labels[i]}-{samples.classes[samples.labels[i]]}"
            folder.mkdir(parents=True, exist_ok=True)
            image = samples.read(i)
            assert isinstance(image, Image.Image)
            image.save(folder / f"{i:04d}.png")


PEOPLE = ("Anna", "Brandt", "Clara", "Dubois", "Ivo", "Keller", "Rose", "May")
"""Two of them are other words as well."""
PLACES = ("Bern", "Graz", "Lyon", "Rouen", "May")
NOTES = (
    "{P} was seen by Dr {P} in {L} .",
    "Dr {P} called from {L} on a Monday .",
    "In May the fever rose , and {P} was sent to {L} .",
    "The pain rose in May .",
    "No fever , no pain .",
    "{P} may go home to {L} in May .",
    "The ward in {L} asked {P} and {P} to call .",
    "Rose oil was no help .",
)
"""Sentences of which the names are to be found."""


def notes(path: Path, rows: int, seed: int) -> None:
    """Write texts of two to four sentences, with the places of people and towns in them."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        text, entities = "", []
        for sentence in rng.choice(NOTES, size=rng.integers(2, 5)):
            for word in str(sentence).split():
                start, kind = len(text), {"{P}": "PER", "{L}": "LOC"}.get(word)
                if kind is not None:
                    names = PEOPLE if kind == "PER" else PLACES
                    word = " ".join(rng.choice(names, size=1 + (rng.random() < 0.3)))
                    entities.append({"start": start, "end": start + len(word), "label": kind})
                text += f"{word} "
        lines.append({"text": text.rstrip(), "entities": entities})
    write_lines(path, lines)


def notes_folder(place: Path) -> None:
    """Write encoder/, a body without a classifier, and train.jsonl, val.jsonl, test.jsonl."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    for name, rows, seed in (("train", 600, 0), ("val", 600, 1), ("test", 300, 2)):
        notes(place / f"{name}.jsonl", rows, seed)
    words = sorted({*PEOPLE, *PLACES, *" ".join(NOTES).split()} - {"{P}", "{L}"})
    ends = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]"}
    vocab = {word: at for at, word in enumerate((*ends.values(), *words))}
    word_tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    word_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(end, vocab[end]) for end in ("[CLS]", "[SEP]")]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer,
        model_max_length=64,
        **{f"{name}_token": token for name, token in ends.items()},
    ).save_pretrained(place / "encoder")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=vocab["[PAD]"],
    )
    transformers.BertModel(config).save_pretrained(place / "encoder")
