"""Bytes → picture: common formats only, of bounded size, grey or RGB of 8 bits.

A picture is read as it is stored, with its EXIF data: a family turns it where its library does. Of
several frames the first is read, transparency is dropped (a transparent colour stays in `info`),
and 16 bits are scaled to 8, where Pillow alone would make most of them white.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

# Pillow knows many more: some start other programs (EPS), and no collection of pictures needs them.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
# Of one encoded picture.
MAX_BYTES = 256 << 20
# Pillow's own bound against decompression bombs: 256 MiB of RGB.
MAX_PIXELS = 89_478_485
# A picture is resized by its shorter side: one of 1 × 20,000 pixels would become 224 × 4,480,000.
MAX_RATIO = 100

# Pillow also logs what it finds wrong, and a logger that nobody has set up prints on the terminal.
logging.getLogger("PIL").addHandler(logging.NullHandler())

SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L")
"""Pillow's modes of 16 bits."""


def decode(content: bytes, where: str) -> Image.Image:
    """Decode a picture; DataError naming `where` if there is none."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged EXIF data
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            check_size(*image.size, where)
            image.load()
            return plain(image)
        except Exception as error:  # decoders raise whatever damaged bytes lead them to
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{where}: not a readable image",
                hint=(
                    f"Mend or remove it (formats read: {', '.join(FORMATS)}), or leave such "
                    "images out by --skip-bad (bench and export have none)."
                ),
            ) from error


def is_picture(value: object) -> TypeGuard[Image.Image]:
    """Return True for a Pillow image, without importing Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def check_size(width: int, height: int, where: str) -> None:
    """Refuse what would need too much memory, here or in the transforms."""
    short, long = sorted((width, height))
    if short < 1 or width * height > MAX_PIXELS or long > MAX_RATIO * short:
        raise DataError(
            f"{where}: the image has {width} × {height} pixels",
            hint=f"Images may have at most {MAX_PIXELS:,} pixels, and sides of at most 1 : {MAX_RATIO}.",
        )


def plain(image: Image.Image) -> Image.Image:
    """Convert any mode to grey or RGB of 8 bits; ValueError for floating-point pixels, which do not
    fit.
    """
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "F":
        raise ValueError("floating-point pixels")
    if image.mode in SIXTEEN_BITS:
        return image.point(lambda value: value / 256).convert("L")
    if image.mode == "PA":
        image = image.convert("RGBA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of palettes with a transparency for each colour
        return image.convert("L" if image.mode == "1" else "RGB")


def turned(image: Image.Image) -> Image.Image:
    """Return a copy that is upright according to its EXIF data."""
    from PIL import ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ImageOps.exif_transpose(image)
        except Exception:  # damaged EXIF data raise anything, and say nothing of the picture
            return image.copy()


def pixels(spec: str, images: NDArray[Any]) -> NDArray[np.uint8]:
    """Check that an array holds images that PIL can take one by one."""
    grey, coloured = images.ndim == 3, images.ndim == 4 and images.shape[-1] in (1, 3, 4)
    if images.dtype != np.uint8 or not (grey or coloured):
        raise DataError(
            f"{spec}: images must be uint8 N×H×W or N×H×W×C, found {images.dtype} {images.shape}"
        )
    if len(images):
        check_size(images.shape[2], images.shape[1], f"{spec}: each image")
    return images
