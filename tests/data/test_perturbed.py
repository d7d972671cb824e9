"""Spoiled samples: the same parts, another whole, the same in every pass."""

from __future__ import annotations

import numpy as np
from PIL import Image

from hydrasurgeon.data.labels import LabelColumn
from hydrasurgeon.data.perturbed import Perturbed
from hydrasurgeon.data.samples import Arrays, Rows


def test_images_keep_their_tiles() -> None:
    pixels = np.repeat(np.repeat(np.arange(9, dtype=np.uint8).reshape(3, 3), 4, 0), 4, 1)
    parent = Arrays(
        "d", np.stack([pixels, pixels, np.full_like(pixels, 7)]), LabelColumn(np.array([0, 1, 1]))
    )
    spoiled = Perturbed(parent, seed=1)
    assert len(spoiled) == 3
    assert spoiled.labels is None
    found = [np.asarray(spoiled.read(i)) for i in range(3)]
    for each in found[:2]:
        assert not np.array_equal(each, pixels)
        assert sorted(each[::4, ::4].ravel()) == list(range(9))
        assert np.array_equal(np.repeat(np.repeat(each[::4, ::4], 4, 0), 4, 1), each)
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], np.full_like(pixels, 7))
    assert np.array_equal(np.asarray(spoiled.read(0)), found[0])
    assert not np.array_equal(np.asarray(Perturbed(parent, seed=2).read(0)), found[0])


def test_odd_sizes_and_modes_keep_their_size() -> None:
    for mode in ("L", "RGB", "RGBA"):
        image = Image.effect_noise((11, 17), 80).convert(mode)

        class One(Arrays):
            def read(self, i: int, image: Image.Image = image) -> Image.Image:
                return image

        made = Perturbed(One("d", np.zeros((1, 2, 2), np.uint8))).read(0)
        assert isinstance(made, Image.Image)
        assert made.size == (11, 17)
    tiny = Perturbed(Arrays("d", np.ones((1, 2, 2), np.uint8))).read(0)
    assert np.asarray(tiny).tolist() == [[1, 1], [1, 1]]


def test_texts_are_words_of_all_samples() -> None:
    texts = ["one two three four", "five six", "seven", "seven"]
    spoiled = Perturbed(Rows("d", texts, "text"))
    words = {word for text in texts for word in text.split()}
    found = [spoiled.read(i) for i in range(4)]
    assert found == [spoiled.read(i) for i in range(4)]
    for text in found:
        assert isinstance(text, str)
        assert set(text.split()) <= words
    assert found[0] != texts[0]
    missing = Perturbed(Rows("d", [texts[0], ""], "text"))
    assert set(str(missing.read(0)).split()) <= words
