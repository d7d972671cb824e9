"""The losses of token classifiers, against loops over words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from hydrasurgeon.anatomy.word_logits import NOTHING, widened
from hydrasurgeon.runtime.kinds import kind_of
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Outputs
from hydrasurgeon.tuning.losses import losses_of

TOKENS = TASKS["token_classification"]
LOSSES = losses_of(TOKENS)
COUNTS = (3, 1, 0, 5)
"""Words of each text."""
CLASSES = 5


def drawn(*members: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, *members, 5, CLASSES, generator=random, dtype=torch.float64)
    for text, count in enumerate(COUNTS):
        logits[text, ..., count:, :] = NOTHING
    return logits


def tags() -> Tensor:
    """Wider than the logits, as a data set's are; one word of the last text has none."""
    labels = torch.full((4, 8), -1)
    random = torch.Generator().manual_seed(1)
    for text, count in enumerate(COUNTS):
        labels[text, :count] = torch.randint(CLASSES, (count,), generator=random)
    labels[3, 2] = -1
    return labels


def test_a_texts_loss_is_the_mean_of_its_words() -> None:
    logits, labels = drawn().requires_grad_(), tags()
    assert LOSSES.is_labelled(labels).tolist() == [True, True, False, True]
    for smoothing in (0.0, 0.1):
        losses = LOSSES.losses(logits, labels, smoothing)
        for text in range(4):
            words = [w for w in range(5) if labels[text, w] >= 0]
            each = [
                cross_entropy(logits[text, w], labels[text, w], label_smoothing=smoothing)
                for w in words
            ]
            expected = sum(each) / len(each) if each else torch.zeros(())
            torch.testing.assert_close(losses[text], expected, check_dtype=False)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient.isfinite().all()
    assert (gradient[3, 2] == 0).all()


def test_members_are_validated_by_their_mean_probability() -> None:
    logits, labels = drawn(3), tags()
    merged = kind_of(TOKENS).merged(logits)
    assert (merged[2] == NOTHING).all()
    mean = logits.softmax(dim=-1).mean(dim=1)
    there = labels[:, :5] >= 0
    torch.testing.assert_close(merged[there].exp().double(), mean[there], atol=1e-6, rtol=0)
    found, said, truth = (
        TOKENS.validated(logits.numpy(), labels.numpy()),
        mean[there],
        labels[:, :5][there],
    )
    nll = -said.gather(-1, truth[:, None]).log().mean()
    assert found["nll"] == pytest.approx(float(nll), abs=1e-6)
    right = (said.argmax(dim=-1) == truth).double().mean()
    assert found["token_accuracy"] == pytest.approx(float(right))


def test_teachers_are_followed_word_by_word() -> None:
    logits, teachers = drawn(), [drawn(2, seed=2), widened(drawn(1, seed=3), 9, 2)]
    loss = LOSSES.distilled(logits, teachers, 2.0)
    texts = []
    for text, count in enumerate(COUNTS):
        total = 0.0
        for word in range(count):
            said = [t[text, m, word] for t in teachers for m in range(t.shape[1])]
            mean = torch.stack([(z / 2).softmax(dim=-1) for z in said]).mean(dim=0)
            own = (logits[text, word] / 2).log_softmax(dim=-1)
            total += 4 * float(kl_div(own, mean, reduction="sum"))
        texts.append(total / max(1, count))
    assert abs(float(loss) - sum(texts) / 4) < 1e-12


def test_outputs_of_other_widths_are_joined() -> None:
    wide, labels = drawn(2).numpy(), tags().numpy()
    one = Outputs(wide, None, labels)
    two = Outputs(wide[:2, :, :3], None, labels[:2, :3])
    for first, second in ((one, two), (two, one)):
        both = first.joined(second)
        assert both.logits.shape == (6, 2, 5, CLASSES)
        assert both.truth.shape == (6, 8)
        rows, truth = TOKENS.choices(both.logits)[0], TOKENS.choices(both.logits, both.truth)[1]
        assert len(rows) == len(truth) + 1  # one word is not labelled
        assert bool((rows != NOTHING).all())
