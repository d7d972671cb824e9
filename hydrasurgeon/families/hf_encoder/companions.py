"""The files beside a model that live data needs: which there may be, what they may say, and what is
made of them.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from hydrasurgeon.errors import CheckpointError, Disagreement
from hydrasurgeon.families.hf_encoder.architectures import (
    Dinov2Config,
    EncoderConfig,
    ImageEncoder,
    TextEncoder,
)
from hydrasurgeon.families.settings import (
    Colours,
    Edge,
    Images,
    Settings,
    TextPreprocess,
    pair,
    parse,
    pick_fields,
)
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.untrusted import parse_json

PREPROCESSOR = "preprocessor_config.json"
"""File with the preparation of images, in the words of transformers."""
CONFIG = "tokenizer_config.json"
"""File with the tokenizer's class and options."""
WHOLE = "tokenizer.json"
"""Holds all that the vocabularies hold, and how to use it."""
VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt")
"""Vocabulary files of older tokenizers."""
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
"""Words with a role, such as [CLS], and words beyond the vocabulary, in older tokenizers."""
SPECIAL_KEYS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    "additional_special_tokens",
)
"""Allowed keys of special_tokens_map.json."""
CONFIG_KEYS = (
    *(
        *SPECIAL_KEYS,
        "tokenizer_class",
        "model_max_length",
        "extra_special_tokens",
        "added_tokens_decoder",
    ),
    *("padding_side", "truncation_side", "do_lower_case", "do_basic_tokenize", "strip_accents"),
    *("tokenize_chinese_chars", "add_prefix_space", "trim_offsets", "split_by_punct", "unk_id"),
    "model_input_names",
)
"""Allowed keys of tokenizer_config.json: those that change ids, or the outputs that a model reads.
"""
# The largest vocabularies in use, written as JSON, have 35 MB.
MAX_BYTES = 64 << 20
GENERIC = "PreTrainedTokenizerFast"
"""The class that does what tokenizer.json says and nothing else."""
# Other classes of transformers whose tokenizer is in tokenizer.json or in plain vocabularies.
CLASSES = re.compile(
    r"TokenizersBackend|(Bert|Camembert|DebertaV2|DistilBert|Electra|MPNet|PreTrained|(XLM)?Roberta)Tokenizer(Fast)?"
)

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's colours: what the library takes unless a config names others."""
HALVES = ((0.5,), (0.5,))
"""The library's default for ViTs, and for images of other than three colours."""
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""The library's default for CLIP."""
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""PIL's ways to resize, by its numbers."""


class Usual(NamedTuple):
    """Preparation of images without a file that says it."""

    squash: bool
    """True to resize both edges to a fixed size; False to resize the shortest edge."""
    larger: float
    """Factor of the resized edge over the crop."""
    resample: int
    colours: tuple[tuple[float, ...], tuple[float, ...]]
    white: bool = True
    """True if white lies behind transparent colours."""


CROPPED = Usual(False, 256 / 224, 3, IMAGENET)
"""DINOv2's."""
USUAL = {
    "vit": Usual(True, 1.0, 2, HALVES, white=False),
    "deit": Usual(True, 256 / 224, 3, IMAGENET, white=False),
    "dinov2": CROPPED,
    "dinov2_with_registers": CROPPED,
    "clip": Usual(False, 1.0, 3, OPENAI),
    "siglip": Usual(True, 1.0, 3, HALVES),
}
"""Usual preparation of images, by model type."""
# Height and width, or the shortest edge.
Sides = dict[Literal["height", "width", "shortest_edge"], Edge]


class Processor(Settings):
    """preprocessor_config.json, as far as it says what pixels a model sees."""

    size: Edge | Sides | None = None
    crop_size: Edge | Sides | None = None
    do_center_crop: bool | None = None
    do_normalize: bool | None = None
    do_convert_rgb: bool | None = None
    resample: Annotated[int, Field(ge=0, le=5)] | None = None
    image_mean: Colours | None = None
    image_std: Colours | None = None


class Reader(Settings):
    """tokenizer_config.json, as far as it is used here."""

    model_max_length: Annotated[int | float, Field(ge=1)] | None = None
    model_input_names: list[str] | None = None
    tokenizer_class: str = GENERIC


def companions(present: Collection[str]) -> tuple[str, ...]:
    """Return the files of a directory that live data needs."""
    vocabularies = (WHOLE,) if WHOLE in present else VOCABULARIES
    tokenizer_names = (*vocabularies, CONFIG, SPECIAL, ADDED, PREPROCESSOR)
    return tuple(name for name in tokenizer_names if name in present)


def files_sha256(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def padded_right(model: Model, files: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """Return a model and its files with a tokenizer that pads on the right."""
    config = {**json.loads(files.get(CONFIG, "{}")), "padding_side": "right"}
    changed = {**files, CONFIG: json.dumps(config, indent=2) + "\n"}
    prepared = {**model.preprocess, "files_sha256": files_sha256(changed)}
    return model.model_copy(update={"preprocess": prepared}), changed


def check_files(files: Mapping[str, str], where: str) -> None:
    """Raise CheckpointError for small files that say what they may not.

    Vocabularies are read with the texts.
    """
    _tokenizer(files, where)
    _processor(files, where)


def _tokenizer(files: Mapping[str, str], where: str) -> dict[str, dict[str, Any]]:
    """Return the allowed settings of a tokenizer's small files.

    Its class runs no code of a repository.
    """
    small = {name: _mapping(files, name, where) for name in (CONFIG, SPECIAL, ADDED)}
    for name, keys in ((CONFIG, CONFIG_KEYS), (SPECIAL, SPECIAL_KEYS)):
        small[name] = {key: small[name][key] for key in keys if small[name].get(key) is not None}
    config = small[CONFIG]
    called = parse(Reader, pick_fields(Reader, config), f"{where}: {CONFIG}").tokenizer_class
    if any(type(number) is not int or number < 0 for number in small[ADDED].values()):
        raise CheckpointError(f"{where}: {ADDED}: a word has no number")
    if not CLASSES.fullmatch(called):
        if WHOLE not in files:
            message = f"{where}: {CONFIG}: tokenizer_class {called[:60]!r} is not supported without {WHOLE}"
            raise CheckpointError(
                message,
                hint="Save the tokenizer by transformers once, which writes tokenizer.json.",
            )
        config["tokenizer_class"] = GENERIC
    return small


def _processor(files: Mapping[str, str], where: str) -> Processor:
    raw, place = _mapping(files, PREPROCESSOR, where), f"{where}: {PREPROCESSOR}"
    read = parse(Processor, pick_fields(Processor, raw), place)
    for sides in (read.size, read.crop_size):
        if isinstance(sides, dict) and {*sides} not in ({"height", "width"}, {"shortest_edge"}):
            raise CheckpointError(f"{place}: a size has height and width, or shortest_edge")
    return read


def _mapping(files: Mapping[str, str], name: str, where: str) -> dict[str, Any]:
    raw = parse_json(files.get(name, "{}"), f"{where}: {name}", most=MAX_BYTES)
    if not isinstance(raw, dict):
        raise CheckpointError(
            f"{where}: {name}: is not a JSON object (it is a {type(raw).__name__})"
        )
    if "auto_map" in raw:
        # We execute nothing, but who loads what we write may trust its code: ours.
        message = f"{where}: {name}: runs code of its own (auto_map), which is not executed"
        raise CheckpointError(
            message, hint="If transformers' own classes do as well, take auto_map out of it."
        )
    return raw


def load_tokenizer(
    files: Mapping[str, str], model_type: str, words: int, reader: str = "AutoTokenizer"
) -> Any:
    """Load transformers' tokenizer from these files, each rewritten with allowed settings.

    Ids must be below `words`. `reader` is the class that reads the files.
    """
    import transformers

    from hydrasurgeon.data.texts import blamed

    where = "the checkpoint's tokenizer"
    if not any(name in files for name in (WHOLE, "vocab.txt", "vocab.json")):
        hint = "Put tokenizer.json (or vocab.txt) beside its config.json."
        raise CheckpointError("the checkpoint has no tokenizer, so it cannot read texts", hint=hint)
    texts = {name: files[name] for name in (WHOLE, *VOCABULARIES) if name in files}
    for name in (name for name in texts if name.endswith(".json")):
        # Before tokenizers sees them: it makes room for every number below the largest.
        _check_numbers(
            _numbers(parse_json(texts[name], f"{where}: {name}", most=MAX_BYTES)),
            words,
            f"{where}: {name}",
        )
    small = _tokenizer(files, where)
    texts |= {name: json.dumps(small[name]) for name in small if name == CONFIG or name in files}
    named = ", ".join(sorted(texts))
    # transformers takes the class that tokenizer_config.json names only if it knows what model it
    # is for.
    texts["config.json"] = json.dumps({"model_type": model_type})
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        with blamed(f"{where} cannot be made of {named}", hide=folder), quietly():
            tokenizer = getattr(transformers, reader).from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    if tokenizer.pad_token_id is None:
        raise CheckpointError(
            f"{where} has no token for padding", hint=f"Name one as pad_token in {CONFIG}."
        )
    _check_numbers(tokenizer.get_vocab().values(), words, where)
    return tokenizer


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what newer releases print about token numbers, which nothing here uses."""
    from transformers import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _numbers(vocabulary: Any) -> list[int]:
    """List the words' numbers in a tokenizer.json or vocab.json, as far as it has the shape of one."""
    if not isinstance(vocabulary, dict):
        return []
    model, added = vocabulary.get("model"), vocabulary.get("added_tokens")
    numbered = model.get("vocab") if isinstance(model, dict) else vocabulary
    ids = list(numbered.values()) if isinstance(numbered, dict) else []
    ids += (
        [word.get("id") for word in added if isinstance(word, dict)]
        if isinstance(added, list)
        else []
    )
    return [number for number in ids if type(number) is int]


def _check_numbers(numbers: Iterable[int], words: int, where: str) -> None:
    beyond = max(numbers, default=0)
    if beyond >= words:
        message = f"{where} has a word number {beyond}, the model has {words} words (vocab_size)"
        raise CheckpointError(message, hint="Bring back the tokenizer that belongs to the model.")


def preprocess(config: EncoderConfig, files: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the preparation from the companions, else the usual one of the type."""
    recorded = {"files_sha256": files_sha256(files)} if files else {}
    if isinstance(config, TextEncoder):
        limit = _tokenizer(files, where)[CONFIG].get("model_max_length", config.longest)
        return parse(
            TextPreprocess, {"max_length": min(config.longest, int(limit)), **recorded}, where
        ).written()
    assert isinstance(config, ImageEncoder)
    processor, place = _processor(files, where), f"{where}: {PREPROCESSOR}"
    images = parse(
        Images, {**_sizing(config, processor), **_colours(config, processor), **recorded}, place
    )
    check_size(config, images, place, CheckpointError)
    return images.written()


def check_size(
    config: ImageEncoder, images: Images, where: str, error: type[CheckpointError]
) -> None:
    """Refuse images that the model does not read; DINOv2 stretches its table of positions over
    images of any size.
    """
    size = images.input_size[1:] if isinstance(config, Dinov2Config) else pair(config.image_size)
    images.check(config.num_channels, size, where, error)


def _sizing(config: ImageEncoder, processor: Processor) -> dict[str, Any]:
    """Return the settings of resizing and cropping."""
    usual = USUAL[config.model_type]
    size, crop = (
        (processor.size, processor.crop_size)
        if processor.size is not None
        else _usual_sizes(config)
    )
    if isinstance(size, int):
        size = {"height": size, "width": size} if usual.squash else {"shortest_edge": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    edge = size.get("height", size.get("shortest_edge", 1))
    target = size if crop is None or processor.do_center_crop is False else crop
    height, width = (
        target.get(side, target.get("shortest_edge", 1)) for side in ("height", "width")
    )
    resample = processor.resample if processor.resample is not None else usual.resample
    return {
        "input_size": [config.num_channels, height, width],
        "interpolation": RESAMPLE[resample],
        # Half a pixel keeps timm's floor(crop / crop_pct) at the edge.
        "crop_pct": 1.0 if height == edge else height / (edge + 0.5),
        "crop_mode": "squash" if "height" in size else "center",
    }


def white_behind(config: EncoderConfig, files: Mapping[str, str]) -> bool:
    """Return True if the processor converts to RGB, which puts white behind a transparent colour."""
    converts = _processor(files, config.model_type).do_convert_rgb
    return USUAL[config.model_type].white if converts is None else converts


def _usual_sizes(config: ImageEncoder) -> tuple[Sides, Sides]:
    """Return the usual sizes for models of this type: of resizing, and of the crop."""
    height, width = pair(config.image_size)
    # DINOv2 was trained at 518 and is used at 224, and so are the others with the size they have.
    if isinstance(config, Dinov2Config) and min(height, width) >= 224:
        height = width = 224
    usual = USUAL[config.model_type]
    high, wide = (round(edge * usual.larger) for edge in (height, width))
    size: Sides = (
        {"height": high, "width": wide} if usual.squash else {"shortest_edge": min(high, wide)}
    )
    return size, {"height": height, "width": width}


def _colours(config: ImageEncoder, processor: Processor) -> dict[str, Any]:
    channels = config.num_channels
    if processor.do_normalize is False:
        return {"mean": [0.0] * channels, "std": [1.0] * channels}
    usual = USUAL[config.model_type].colours if channels == 3 else HALVES
    mean = processor.image_mean if processor.image_mean is not None else usual[0]
    std = processor.image_std if processor.image_std is not None else usual[1]
    return {
        name: list(one if len(one) == channels else one[:1] * channels)
        for name, one in (("mean", mean), ("std", std))
    }


def image_processor(model: Model) -> str:
    """Return the text of preprocessor_config.json, also for a checkpoint that came without one."""
    images = parse(Images, model.preprocess, "model.preprocess")
    _, height, width = images.input_size
    share, squash = images.crop_pct or 1.0, images.crop_mode == "squash"
    edge = round(height / share - (0 if share == 1.0 else 0.5))
    record = {
        "image_processor_type": "DeiTImageProcessor" if squash else "BitImageProcessor",
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
        "do_center_crop": edge != height,
        "size": {"height": edge, "width": edge} if squash else {"shortest_edge": edge},
        "crop_size": {"height": height, "width": width},
        "resample": RESAMPLE.index(images.interpolation),
        "rescale_factor": 1 / 255,
        "image_mean": list(images.mean),
        "image_std": list(images.std),
    }
    return json.dumps(record, indent=2) + "\n"


def check_recorded(model: Model, files: Mapping[str, str], where: str) -> None:
    """Refuse companions that are not the ones the manifest speaks of, or say what they may not."""
    recorded = model.preprocess.get("files_sha256")
    if files and recorded is not None and recorded != files_sha256(files):
        message = f"{where}: the manifest belongs to another tokenizer or preprocessor than {', '.join(files)}"
        raise Disagreement(message, hint="Restore the matching files.")
    check_files(files, where)
