"""examples/serve: what a request may bring is refused before it meets a model, or the batch it would be in."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra serve is missing: fastapi")

PLACE = Path(__file__).parents[2] / "examples" / "serve" / "inputs.py"


def served() -> Any:
    """The example's own module."""
    spec = importlib.util.spec_from_file_location("serve_inputs", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def png(width: int, height: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (width, height), 7).save(content, "PNG")
    return content.getvalue()


def test_an_image_whose_shorter_side_would_make_it_huge() -> None:
    inputs = served()
    sizes: list[tuple[int, int]] = []
    image = inputs.image_in(png(3, 4), lambda image: sizes.append(image.size) or "taken")
    assert (image, sizes) == ("taken", [(3, 4)])
    for content, status in ((png(1, 20_000), 422), (png(8_000, 7_000), 413), (b"GIF89a", 422), (png(3, 4)[:45], 422)):
        with pytest.raises(inputs.HTTPException) as refused:
            inputs.image_in(content, lambda image: pytest.fail("it was transformed"))
        assert refused.value.status_code == status


def test_a_text_that_would_fail_the_whole_batch() -> None:
    inputs = served()
    assert inputs.text_in(b'{"text": "a \\u00e9"}') == "a é"
    for content in (b'{"text": "a \\ud800"}', b'{"text": 3}', b"[" * 100_000):
        with pytest.raises(inputs.HTTPException) as refused:
            inputs.text_in(content)
        assert refused.value.status_code == 422
