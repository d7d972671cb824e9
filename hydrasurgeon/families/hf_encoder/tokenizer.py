"""The tokenizer's files: which there may be, what they may say to transformers, and how it is made of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.hf_encoder.growth import check_growth
from hydrasurgeon.families.settings import MAX_WORDS, Settings, known, parse
from hydrasurgeon.files.foreign import parse_json

PREPROCESSOR = "preprocessor_config.json"
"""How images are prepared, in the words of transformers."""
CONFIG = "tokenizer_config.json"
"""What class the tokenizer is of, and its options."""
WHOLE = "tokenizer.json"
"""Holds all that the vocabularies hold, and how to use it."""
VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt")
"""What the words are called in older tokenizers."""
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
"""Words with a role, such as [CLS], and words beyond the vocabulary, in older tokenizers."""

# A config of a tokenizer lists its added words, a few hundred bytes each.
MAX_CONFIG = 16 << 20
# The largest vocabularies in use, written as JSON, have 35 MB.
MAX_VOCABULARY = 64 << 20
# Classes of transformers whose tokenizer is in tokenizer.json or in plain vocabularies; each runs no code of a
# repository.
CLASSES = (
    "BertTokenizer",
    "CamembertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MPNetTokenizer",
    "PreTrainedTokenizer",
    "RobertaTokenizer",
    "TokenizersBackend",
    "XLMRobertaTokenizer",
)
GENERIC = "PreTrainedTokenizerFast"
"""Does what tokenizer.json says and nothing else."""

ADDED_FIELDS = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
"""What tokenizer.json says of an added word."""
UNUSUAL = "☃☃☃"
"""A word that vocabularies lack: some find out only then that they have nothing for it."""

Word = Annotated[str, Field(max_length=1_000)]


class AddedToken(Settings):
    content: Word
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False
    kind: Literal["AddedToken"] = Field("AddedToken", alias="__type")


Token = Word | AddedToken | None
Tokens = Annotated[list[Word | AddedToken], Field(max_length=100_000)]


class SpecialTokens(Settings):
    bos_token: Token = None
    eos_token: Token = None
    unk_token: Token = None
    sep_token: Token = None
    pad_token: Token = None
    cls_token: Token = None
    mask_token: Token = None
    additional_special_tokens: Tokens | None = None


class TokenizerConfig(SpecialTokens):
    """tokenizer_config.json, as far as it changes which ids a text becomes."""

    tokenizer_class: Word | None = None
    # transformers writes 10^30 where there is no limit.
    model_max_length: Annotated[int | float, Field(ge=1)] | None = None
    extra_special_tokens: Tokens | dict[Word, Word | AddedToken] | None = None
    added_tokens_decoder: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], AddedToken] | None = None
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    do_lower_case: bool | None = None
    do_basic_tokenize: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    trim_offsets: bool | None = None


R = TypeVar("R", bound=Settings)


def companions(present: Collection[str]) -> tuple[str, ...]:
    """The files of a directory that live data needs, and no others."""
    vocabularies = (WHOLE,) if WHOLE in present else VOCABULARIES
    wanted = (*vocabularies, CONFIG, SPECIAL, ADDED, PREPROCESSOR)
    return tuple(name for name in wanted if name in present)


def files_sha256(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def tokenizer_config(files: Mapping[str, str], where: str) -> TokenizerConfig:
    return companion(TokenizerConfig, files, CONFIG, where)


def check_tokenizer(files: Mapping[str, str], where: str) -> None:
    """CheckpointError for small files that say what they may not; vocabularies are read when texts are."""
    config = tokenizer_config(files, where)
    _class_name(config, files, where)
    companion(SpecialTokens, files, SPECIAL, where)
    _added(files, where)


def load_tokenizer(files: Mapping[str, str], model_type: str, words: int) -> Any:
    """transformers' tokenizer of these files, each rewritten with what it may say; ids are below `words`."""
    where = "the checkpoint's tokenizer"
    if not any(name in files for name in (WHOLE, "vocab.txt", "vocab.json")):
        raise CheckpointError(
            "the checkpoint has no tokenizer, so it cannot read texts",
            hint="Put tokenizer.json (or vocab.txt) beside its config.json.",
        )
    texts = {name: files[name] for name in (WHOLE, *VOCABULARIES) if name in files}
    for name in texts:
        if name.endswith(".json"):
            said = parse_json(texts[name], f"{where}: {name}", most=MAX_VOCABULARY)
            # Before tokenizers sees them: it makes room for every number below the largest.
            _check_numbers(_numbers(said), words, f"{where}: {name}")
            _check_added(said, f"{where}: {name}")
            if name == WHOLE:
                check_growth(said, f"{where}: {name}")
    config = tokenizer_config(files, where)
    stated = config.written() | {"tokenizer_class": _class_name(config, files, where)}
    texts[CONFIG] = json.dumps({key: value for key, value in stated.items() if value is not None})
    if SPECIAL in files:
        texts[SPECIAL] = json.dumps(companion(SpecialTokens, files, SPECIAL, where).written())
    if ADDED in files:
        texts[ADDED] = json.dumps(_added(files, where))
    # transformers takes the class that tokenizer_config.json names only if it knows what model it is for.
    texts["config.json"] = json.dumps({"model_type": model_type})
    made = _made(texts, where)
    if made.pad_token_id is None:
        raise CheckpointError(
            f"{where} has no token for padding, so texts of different lengths cannot be read together",
            hint=f"Name one as pad_token in {CONFIG}.",
        )
    _check_numbers(made.get_vocab().values(), words, where)
    return made


def _numbers(vocabulary: Any) -> list[int]:
    """The words' numbers in a tokenizer.json or vocab.json, as far as it has the shape of one; else tokenizers says why
    not."""
    if not isinstance(vocabulary, dict):
        return []
    model, added = vocabulary.get("model"), vocabulary.get("added_tokens")
    numbered = model.get("vocab") if isinstance(model, dict) else vocabulary
    ids = list(numbered.values()) if isinstance(numbered, dict) else []
    if isinstance(added, list):
        ids += [word.get("id") for word in added if isinstance(word, dict)]
    return [number for number in ids if type(number) is int]


def _check_added(vocabulary: Any, where: str) -> None:
    """Fields of added words that tokenizers does not know: it would print them to the terminal, whatever they hold."""
    added = vocabulary.get("added_tokens") if isinstance(vocabulary, dict) else None
    for word in added if isinstance(added, list) else ():
        if isinstance(word, dict) and (unknown := word.keys() - ADDED_FIELDS):
            raise CheckpointError(
                f"{where}: an added word has a field {min(unknown)[:60]!r}, which tokenizers does not know",
                hint="Bring back the files as transformers wrote them.",
            )


def _check_numbers(numbers: Iterable[int], words: int, where: str) -> None:
    beyond = max(numbers, default=0)
    if beyond >= words:
        raise CheckpointError(
            f"{where} has a word number {beyond}, the model has {words} words (vocab_size)",
            hint="Bring back the tokenizer that belongs to the model.",
        )


def _made(texts: Mapping[str, str], where: str) -> Any:
    from transformers import AutoTokenizer

    from hydrasurgeon.data.texts import blamed

    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        names = ", ".join(sorted(set(texts) - {"config.json"}))
        with blamed(f"{where} cannot be made of {names}", hide=folder), _unheard():
            made = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            made(UNUSUAL)
        return made


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Rust says on stderr where it panics, before that becomes an exception with a message of ours."""
    sys.stderr.flush()
    try:
        before = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _class_name(config: TokenizerConfig, files: Mapping[str, str], where: str) -> str | None:
    """The class to make: one of the table's, else the generic one where tokenizer.json says it all."""
    name = config.tokenizer_class
    if name is None or name == GENERIC or name.removesuffix("Fast") in CLASSES:
        return name
    if WHOLE in files:
        return GENERIC
    raise CheckpointError(
        f"{where}: {CONFIG}: tokenizer_class {name[:60]!r} is not supported without {WHOLE}",
        hint="Save the tokenizer by transformers once, which writes tokenizer.json.",
    )


def companion(record: type[R], files: Mapping[str, str], name: str, where: str) -> R:
    """What a small JSON file says, as far as `record` has fields for it."""
    return parse(record, known(record, _mapping(files, name, where)), f"{where}: {name}")


def _added(files: Mapping[str, str], where: str) -> dict[str, int]:
    """added_tokens.json: words and their numbers."""
    words = _mapping(files, ADDED, where)
    for word, number in words.items():
        if type(number) is not int or not 0 <= number < MAX_WORDS:
            raise CheckpointError(f"{where}: {ADDED}: {word[:60]!r} has no number of a word")
    return words


def _mapping(files: Mapping[str, str], name: str, where: str) -> dict[str, Any]:
    raw = parse_json(files.get(name, "{}"), f"{where}: {name}", most=MAX_CONFIG)
    if isinstance(raw, dict) and "auto_map" in raw:
        # We execute nothing, but who loads what we write may trust its code: ours.
        raise CheckpointError(
            f"{where}: {name}: runs code of its own (auto_map), which is not executed",
            hint="If transformers' own classes do as well, take auto_map out of it.",
        )
    if not isinstance(raw, dict):
        raise CheckpointError(f"{where}: {name}: is not a record (it is a {type(raw).__name__})")
    return raw
