"""What promises are about: answered rows, names that are found already, sets that a person can use."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.neighbors import NearestNeighbors

from hydrasurgeon.decision.fitting import check_count, fit_state
from hydrasurgeon.decision.ood_score import Grounds, evidence_of
from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.errors import DataError
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import rows_needed, two_digits
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Outputs

GUIDE = Path(__file__).parents[2] / "docs/guide/decision.md"


def promise(**options: object) -> CalibrateOptions:
    return CalibrateOptions.of("m", data="d", out="o", **options)


def drawn(count: int, seed: int, *, noise: float = 1.0) -> Outputs:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=random).numpy()
    logits = noise * torch.randn(count, 1, 3, generator=random).numpy()
    logits[np.arange(count), 0, labels] += 4
    return Outputs(logits, None, labels)


def test_no_familiar_row_has_an_empty_set_and_a_note_says_which_coverage_helps() -> None:
    state, notes = fit_state(
        drawn(4000, 0, noise=2.0), promise(coverage=0.8, ood_score="energy"), Grounds()
    )
    fresh = drawn(3000, 1, noise=2.0)
    said = decide(state, fresh.logits, None)
    sizes = said.sets.sum(axis=-1)
    assert (sizes[~said.unfamiliar] >= 1).all()
    assert (1 - said.probabilities.max(axis=-1) > state.record.conformal.threshold).any()
    (note,) = (note for note in notes if "--coverage 0.8 asks" in note)
    assert "almost every prediction set holds one label" in note
    assert (sizes > 1).mean() < 0.02
    assert (sizes[said.unfamiliar] == 0).any()
    found = re.search(r"--coverage ([\d.]+) gives", note)
    assert found is not None
    helped, _ = fit_state(
        drawn(4000, 0, noise=2.0), promise(coverage=float(found[1]), ood_score="energy"), Grounds()
    )
    assert (decide(helped, fresh.logits, None).sets.sum(axis=-1) > 1).astype(
        np.float64
    ).mean() > 0.01


def test_a_risk_is_of_answered_rows() -> None:
    """What is easy looks unfamiliar, and would pay for the others."""
    random = torch.Generator().manual_seed(0)

    def some(count: int) -> Outputs:
        easy = torch.rand(count, generator=random).numpy() < 0.2
        labels = torch.randint(0, 2, (count,), generator=random).numpy()
        wrong = (torch.rand(count, generator=random).numpy() < 0.1) & ~easy
        # A larger logit is less familiar by −max z, and no surer.
        logits = np.zeros((count, 1, 2))
        logits[np.arange(count), 0, np.where(wrong, 1 - labels, labels)] = 3.0
        logits = logits - (2.0 * easy)[:, None, None]
        return Outputs(
            logits + 1e-4 * torch.rand(count, 1, 1, generator=random).numpy(), None, labels
        )

    def broken(state: State) -> float:
        fresh = some(20_000)
        said = decide(state, fresh.logits, None)
        kept = ~said.unfamiliar & ~said.abstain
        return (
            float(((said.labels != fresh.truth)[kept]).astype(np.float64).mean())
            if kept.any()
            else 0.0
        )

    # 8 % of all rows are wrong, and 10 % of those that look familiar.
    options = promise(id_flagged=0.2, risk=0.09, ood_score="max-logit")
    with pytest.raises(DataError, match="30,000 rows cannot promise it") as refused:
        fit_state(some(30_000), options, Grounds())
    assert "smallest risk that can be promised is 11 %" in str(refused.value.hint)
    assert "More rows do not help" in str(refused.value.hint)
    state, _ = fit_state(
        some(30_000), promise(id_flagged=0.2, risk=0.12, ood_score="max-logit"), Grounds()
    )
    assert broken(state) <= 0.12


def test_a_note_says_why_rows_are_left_unanswered() -> None:
    """Because more is wrong than is allowed; or because rows are few, and then it says how many are
    not: with these nearly all are answered."""

    def noted(outputs: Outputs, risk: float) -> str:
        _, notes = fit_state(outputs, promise(risk=risk, ood_score="msp"), Grounds())
        (note,) = (note for note in notes if "leaves" in note)
        return note

    wrong = noted(drawn(600, 0, noise=1.9), 0.05)
    assert re.search(
        r"leaves \d+ % .*: if it answered all that are familiar, 6.3 % would be wrong, more than",
        wrong,
    )
    few = noted(drawn(150, 3, noise=1.3), 0.05)
    more = re.search(r"give about ([\d,]+) rows in all", few)
    assert more is not None
    count = int(more[1].replace(",", ""))
    options = promise(risk=0.05, ood_score="msp")
    state, notes = fit_state(drawn(count, 7, noise=1.3), options, Grounds())
    assert not any("leaves" in note for note in notes)
    assert state.record.abstain is not None


@pytest.mark.slow
def test_a_refusal_says_what_can_be_promised_and_what_would_do() -> None:
    refused = []
    for seed in range(40):
        try:
            fit_state(drawn(200, seed, noise=1.7), promise(risk=0.02, ood_score="msp"), Grounds())
        except DataError as error:
            refused.append((seed, error))
    assert len(refused) > 10
    seed, error = refused[0]
    assert error.message == "--risk 0.02: 200 rows cannot promise it"
    hint = re.fullmatch(
        r"With these 200 rows the smallest risk that can be promised is ([\d.]+) %\. "
        r"A risk of 2 % needs about ([\d,]+) such rows\.",
        str(error.hint),
    )
    assert hint is not None
    smallest, count = float(hint[1]) / 100, int(hint[2].replace(",", ""))
    val = drawn(200, seed, noise=1.7)
    state, _ = fit_state(val, promise(risk=smallest, ood_score="msp"), Grounds())
    assert state.record.abstain is not None
    with pytest.raises(DataError):
        fit_state(val, promise(risk=smallest - 0.01, ood_score="msp"), Grounds())
    kept = 0
    for other in range(20):
        with contextlib.suppress(DataError):
            more = drawn(count, 100 + other, noise=1.7)
            fit_state(more, promise(risk=0.02, ood_score="msp"), Grounds())
            kept += 1
    assert kept >= 12


def test_too_few_rows_for_any_model_are_told_how_many_do() -> None:
    with pytest.raises(DataError, match="60 rows cannot promise it, even if no answer") as refused:
        check_count(60, promise(risk=0.05))
    hint = re.fullmatch(
        r"With these 60 rows at best ([\d.]+) % can be promised, if no answer is wrong\. "
        r"A risk of 5 % needs about (\d+) such rows\.",
        str(refused.value.hint),
    )
    assert hint is not None
    check_count(60, promise(risk=float(hint[1]) / 100))
    check_count(int(hint[2]), promise(risk=0.05))


def test_rows_needed_are_those_of_the_binomial_tail_and_of_the_guide() -> None:
    """Two thirds certify; a standard error more may be wrong than the accuracy says."""
    for risk, accuracy in ((0.05, 0.99), (0.1, 0.95)):
        needed = rows_needed(risk, accuracy)
        assert needed is not None
        for rows, enough in ((needed, True), (int(needed * 0.7), False)):
            certifying = round(rows * 2 / 3)
            wrong = certifying * (1 - accuracy)
            tail = binom.cdf(round(wrong + np.sqrt(wrong * accuracy)), certifying, risk)
            assert bool(tail <= 0.05) is enough
    table = GUIDE.read_text()
    rows = re.findall(r"^\| ((?:0|1)\.\d+) \|(.+)\|$", table, flags=re.MULTILINE)
    assert len(rows) == 6
    for accuracy, cells in rows:
        made = [rows_needed(r, float(accuracy), 0.05) for r in (0.01, 0.02, 0.05, 0.1, 0.2)]
        assert [cell.strip() for cell in cells.split("|")] == [
            "–" if rows is None else two_digits(rows) for rows in made
        ]


@pytest.mark.parametrize("members", [1, 3])
def test_numbers_are_right_though_their_deviation_is_not(members: int) -> None:
    """Heavy tails in the half that certifies make the Gaussian NLL worse than the mean's."""
    random = np.random.default_rng(members)
    truth = random.normal(size=60) * 3
    values = truth[:, None] + 0.01 * random.normal(size=(60, members))
    values[::2] += random.standard_t(1.5, size=(30, members)) * 1.0
    logits = np.asarray(values)[..., None]
    numbers = TASKS["regression"]
    fitting, certifying = (
        numbers.outputs(Outputs(logits[at], None, np.asarray(truth[at])))
        for at in (slice(1, None, 2), slice(0, None, 2))
    )
    fit = numbers.calibrated(fitting, certifying)
    assert fit.losses["joint"] > fit.losses["before"]


def test_a_number_may_come_with_its_variance() -> None:
    """A second output is its logarithm; one that is four times too small is found."""
    random = np.random.default_rng(0)
    own = np.exp(random.normal(size=4000))
    value = random.normal(size=4000)
    logits = np.stack([value, np.log(own)], axis=-1)[:, None]
    numbers = TASKS["regression"]
    outputs = Outputs(logits, None, value + 2 * np.sqrt(own) * random.normal(size=4000))
    fit = numbers.calibrated(numbers.outputs(outputs), numbers.outputs(outputs))
    said = numbers.answers(logits, fit.constants)
    assert said[:, 0] == pytest.approx(value)
    assert said[:, 1] == pytest.approx(2 * np.sqrt(own), rel=0.05)
    assert fit.losses["joint"] < fit.losses["before"]


def test_knn_asks_for_the_neighbour_that_tells_best() -> None:
    """Pairs of rows: what lies near one of many small groups is told by the first neighbour, against
    scikit-learn's distances."""
    random = torch.Generator().manual_seed(2)
    centres = torch.randn(400, 12, generator=random).numpy()

    def some(count: int, spread: float) -> Outputs:
        of = torch.randint(0, 400, (count,), generator=random).numpy()
        features = centres[of] + spread * torch.randn(count, 12, generator=random).numpy()
        labels = (centres[of, 0] > 0).astype(np.int64)
        logits = 9 * np.stack([-features[:, 0], features[:, 0]], axis=-1)
        return Outputs(logits[:, None], features[:, None], labels)

    val, train = some(800, 0.02), some(3000, 0.02)
    weight = np.zeros((2, 12))
    weight[0, 0], weight[1, 0] = -9.0, 9.0
    linear = [(weight, np.zeros(2))]
    state, _ = fit_state(
        val,
        promise(ood_score="knn"),
        Grounds(classifiers=linear, evidence=evidence_of(train, linear, 0), ood=[some(300, 0.25)]),
    )
    assert state.record.ood.neighbours in (1, 5)
    assert state.fitted is not None
    fresh = some(50, 0.1)
    assert fresh.features is not None
    unit = [
        each / np.linalg.norm(each, axis=1, keepdims=True)
        for each in (train.features[:, 0], fresh.features[:, 0])  # type: ignore[index]
    ]
    k = state.record.ood.neighbours
    found = NearestNeighbors(n_neighbors=k).fit(unit[0]).kneighbors(unit[1])[0][:, -1]
    (standard,) = state.record.ood.members
    expected = (found - standard.mean) / standard.deviation
    np.testing.assert_allclose(state.ood_score(fresh.logits, fresh.features), expected, atol=2e-2)


@pytest.mark.parametrize("score", ["vim", "mds", "knn"])
def test_rows_that_fitted_a_score_do_not_set_its_threshold(score: str) -> None:
    """Of few rows with many features, those that a score was fitted to look far too familiar."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(3, 200)) / 10

    def rows(count: int) -> Outputs:
        features = random.normal(size=(count, 1, 200))
        logits = features @ weight.T
        return Outputs(logits, features, logits[:, 0].argmax(axis=-1))

    grounds = Grounds([(weight, np.zeros(3))])
    state, _ = fit_state(rows(400), promise(cross=True, ood_score=score), grounds)
    fresh = rows(4000)
    flagged = decide(state, fresh.logits, fresh.features).unfamiliar.mean()
    assert flagged == pytest.approx(0.05, abs=0.03)
