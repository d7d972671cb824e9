"""Images: valid ones of every format, with their bytes or their fields changed, and bombs."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.bases import Bases
from fuzz.guard import Attempt
from fuzz.hostile import damaged

EXITS = {0, 5}
FORMATS = {
    "png": ("L", "LA", "P", "RGB", "RGBA", "I", "1", "I;16"),
    "jpeg": ("L", "RGB", "CMYK"),
    "bmp": ("L", "RGB", "P", "1"),
    "webp": ("RGB", "RGBA"),
    "gif": ("P", "L"),
    "tiff": ("L", "RGB", "RGBA", "F", "CMYK", "I;16", "P"),
    "ppm": ("L", "RGB", "1"),
    "ico": ("RGBA",),
    "tga": ("RGB", "P"),
    "jpeg2000": ("L", "RGB"),
    "avif": ("RGB", "RGBA"),
    "pcx": ("L", "RGB", "P"),
    "sgi": ("RGB",),
    "im": ("L",),
    "dds": ("RGB",),
    "eps": ("RGB",),
    "pdf": ("RGB",),
    "msp": ("1",),
    "xbm": ("1",),
    "spider": ("F",),
    "icns": ("RGBA",),
    "blp": ("P",),
    "mpo": ("RGB",),
    "qoi": ("RGB",),
}
READ = {"png", "jpeg", "webp", "bmp", "gif", "tiff", "ppm"}
ENDINGS = ("png", "jpg", "bmp", "webp", "gif", "tif", "tiff", "ppm", "pgm", "PNG", "jpeg")


@cache
def _squeezed(length: int) -> bytes:
    return zlib.compress(bytes(length))


@cache
def _valid() -> tuple[tuple[str, bytes], ...]:
    from PIL import Image, features

    made = []
    noise = bytes(Random(0).randrange(256) for _ in range(24 * 20 * 4))
    for kind, modes in FORMATS.items():
        for mode in modes:
            base = Image.frombytes("RGBA", (24, 20), noise)
            image = (
                base.convert("L").convert("I").convert("I;16")
                if mode == "I;16"
                else base.convert("RGB" if mode in ("P", "1") else "RGBA").convert(mode)
                if mode not in ("F", "I")
                else base.convert("L").convert(mode)
            )
            file = io.BytesIO()
            options: dict[str, Any] = {"progressive": True} if kind == "jpeg" and mode == "RGB" else {}
            if kind == "tiff" and mode == "RGB":
                options = {"compression": "tiff_deflate"}
            if kind == "gif":
                options = {"save_all": True, "append_images": [image, image]}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # some formats are on their way out
                    image.save(file, kind, **options)
            except (OSError, KeyError, ValueError, RuntimeError):
                continue  # this build of Pillow does not write it
            made.append((kind, file.getvalue()))
    assert features.check("zlib")
    return tuple(made)


def make(random: Random, bases: Bases) -> Attempt:
    kind, content = random.choice(_valid())
    while kind not in READ and random.random() < 0.8:  # most of those that are refused for what they are
        kind, content = random.choice(_valid())
    content = random.choice(WAYS)(kind, content, random)
    name = f"a/x.{random.choice(ENDINGS)}"
    path = _checkpoint(bases)
    files = {name: content, "l.txt": f"{name} 3\n".encode()}
    command = ("eval", path, "--data", "{}/l.txt", "--device", "cpu", "--quiet", "--json", "-")
    return Attempt(files, lambda folder, out: use(folder / name, content), command)


def _checkpoint(bases: Bases) -> str:
    import hydrasurgeon

    return str(Path(hydrasurgeon.__file__).parent / "demo" / "backbone.safetensors")


@cache
def _transforms() -> tuple[Any, ...]:
    from hydrasurgeon.families.transforms import eval_transform

    grey = {"input_size": [1, 28, 28], "mean": [0.5], "std": [0.5], "crop_pct": 1.0, "interpolation": "bicubic"}
    colour = {
        "input_size": [3, 28, 28],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
    }
    return eval_transform(grey), eval_transform(colour)


def use(path: Path, content: bytes) -> None:
    """Decoded and brought to the size of a model."""
    from hydrasurgeon.data.samples import Files

    image = Files("x", [path]).read(0)
    for transform in _transforms():
        transform(image)


def _flipped(kind: str, content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        # Headers decide more than pixels.
        at = random.randrange(min(len(changed), random.choice((32, 128, 10_000))))
        changed[at] = random.choice(
            (0, 1, 127, 128, 255, random.randrange(256), changed[at] ^ (1 << random.randrange(8)))
        )
    return bytes(changed)


def _cut(kind: str, content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def _spliced(kind: str, content: bytes, random: Random) -> bytes:
    """The beginning of one format and the end of another."""
    _, other = random.choice(_valid())
    at = random.randrange(len(content))
    return content[:at] + other[random.randrange(len(other)) :]


def _number(kind: str, content: bytes, random: Random) -> bytes:
    """A size field set to something that no memory holds."""
    at = random.randrange(max(1, min(len(content) - 4, 128)))
    order = random.choice("<>")
    width = random.choice((2, 4))
    number = random.choice(
        (0, 1, 0x7FFF, 0xFFFF, 50_000) if width == 2 else (0, 2**31 - 1, 2**31, 2**32 - 1, 100_000, 20_000)
    )
    field = struct.pack(f"{order}{'H' if width == 2 else 'I'}", number)
    return content[:at] + field + content[at + width :]


def _png(kind: str, content: bytes, random: Random) -> bytes:
    """Chunks of a PNG with their checksums made to fit."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    width = random.choice((0, 1, 8, 300, 20_000, 100_000, 2**31 - 1, 2**32 - 1))
    height = random.choice((0, 1, 8, 300, 20_000, 100_000, 2**31 - 1))
    depth, colour = random.choice((1, 2, 4, 8, 16, 0, 255)), random.choice((0, 2, 3, 4, 6, 1, 7))
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, random.choice((0, 1)))
    body = _squeezed(random.choice((0, 100, 10_000, 1_000_000)))
    extra = random.choice(
        (
            b"",
            chunk(b"tEXt", b"a\0" + b"b" * 100),
            chunk(b"zTXt", b"a\0\0" + _squeezed(3_000_000)),
            chunk(b"iTXt", b"\xff" * 50),
            chunk(b"iCCP", b"x\0\0" + _squeezed(3_000_000)),
            chunk(b"PLTE", b"abc" * 300),
            chunk(b"eXIf", random.randbytes(40)),
            chunk(b"tRNS", random.randbytes(3)),
            chunk(b"acTL", struct.pack(">II", 2**31, 0)),
            chunk(b"gAMA", b""),
        )
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", body)
        + random.choice((b"", chunk(b"IEND", b"")))
    )


def _bytes(kind: str, content: bytes, random: Random) -> bytes:
    return damaged(content, random)


WAYS = (_flipped, _flipped, _flipped, _flipped, _number, _number, _cut, _spliced, _png, _bytes)
