"""Candidates of a build: made and run stage by stage, the quickest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numpy import ndarray

from hydrasurgeon.building.answers import AnswerStore
from hydrasurgeon.building.budgets import Budget, ModelSizes
from hydrasurgeon.building.clock import Clock
from hydrasurgeon.building.costs import CandidateCosts, in_macs
from hydrasurgeon.building.members import (
    SEEDS,
    Cuts,
    MemberModel,
    check_uncut,
    probe_of,
    tuned,
)
from hydrasurgeon.building.plan import Plan
from hydrasurgeon.building.suspects import LabelCheck
from hydrasurgeon.building.table import (
    BuildObjective,
    Candidate,
    CandidateTable,
    right_of,
)
from hydrasurgeon.building.work import Workshop, WorkState
from hydrasurgeon.checkpoints.checkpoint import Single, open_single, undecided
from hydrasurgeon.data import Samples, first_batch
from hydrasurgeon.data.folds import folds_of
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.decision.text_model import (
    Reading,
    fit_reading,
    lacks,
    lesson,
    seer,
)
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.decided import ZERO_SHOT
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.surgery.means import check_common_start
from hydrasurgeon.surgery.repair import sharing
from hydrasurgeon.tasks.base import Outputs

MOST_MEMBERS = 5
"""Members of a hydra."""
SPARE = 0.005
"""The fraction of samples by which accuracy may fall where OOD data choose."""
SINGLE = "single model, calibrated"
PROBE = "probe"
LEAST_ON, MOST_ON = 0.01, 0.95
"""Range of the fraction of samples that go on to the model where words answer first. Below it they
do not know what is novel; above it nothing is saved.
"""


@dataclass
class SearchSpace:
    """Everything that is chosen from."""

    options: BuildOptions
    budgets: Sequence[Budget]
    opened: Single
    """The first model, or the probe of a body: what costs are multiples of."""
    models: list[MemberModel]
    """Whole models; of a body these are tuned as they come."""
    answer_store: AnswerStore
    data: Samples
    """TRAIN."""
    workshop: Workshop
    plan: Plan
    state: WorkState
    clock: Clock | None = None
    """There for a budget of time."""
    probe: MemberModel | None = None
    label_check: LabelCheck | None = None
    """None where labels are no classes."""
    reads_words: bool = False
    """True once choices may have a bag-of-words model: a blend or a cascade."""
    missing: Sequence[Budget] = ()
    """Budgets that have no file yet."""
    tried: int = 1
    """Number of models that take part so far."""
    cuts: list[MemberModel] = field(default_factory=list)
    """Models that were cut to a size."""
    mean: tuple[MemberModel, ...] = ()
    """The mean of several models that share a start; empty otherwise."""
    plain: list[Candidate] = field(default_factory=list)
    """The plain rivals, which are chosen by nobody."""

    def stages(self) -> Iterator[None]:
        """Make candidates, the quickest first; yield whenever there is more to choose from."""
        self.plan.begin("quick")
        if self.models:
            self.plain.append(Candidate.of(self.models[0], name=SINGLE))
            yield
        if (probe := self._probed()) is not None:
            self.probe = probe
            self.plain.append(Candidate.of(probe, name=PROBE))
            if self.options.crossed:  # the answers are there
                self._check_labels()
            yield
        self.plan.tick("words", 0, 1)
        if self.words is not None:
            self.reads_words = True
            yield
        if self._is_quick:
            if self.missing and self._cuts_some:
                yield from self._smaller_probe()
            self.plan.begin("wide")
            yield from self._wider()
        if not self.options.crossed:
            self._check_labels()
        if not self.models and not self.options.crossed:
            self.plan.begin("tuned")
            yield from self._tuned()
        if len(self.models) > 1:
            self.plan.begin("models")
            yield from self._together()
        if self._cuts_some:
            self.plan.begin("sizes")
            yield from self._smaller(self.budgets, self._uncut)

    @property
    def _uncut(self) -> Sequence[MemberModel]:
        """Models to cut: the mean, or every model where the mean is worse than one of them or does
        not exist.
        """
        worth = [self._value_of(member) for member in [*self.mean, *self.models]]
        return self.mean if self.mean and worth[0] >= max(worth) else self.models

    def _check_labels(self) -> None:
        """List the rows whose label looks wrong, by the probe."""
        if self.label_check is not None and self.probe is not None:
            self.plan.tick("labels", 0, 1)
            self.label_check.run(self.probe, self._out_of_fold)

    def _out_of_fold(self) -> Outputs:
        """Return what classifiers of the other folds answer, where a build cross-fits."""
        assert self.probe is not None
        choice = self.costs.in_engines(Candidate.of(self.probe))[0]
        return self.answer_store.read(self.probe, choice.engine).sets[0]

    @property
    def _cuts_some(self) -> bool:
        return any(step.key == "sizes" for step in self.plan.steps)

    def check(self, opened: Sequence[Single]) -> None:
        """Refuse what cannot be made smaller, and budgets that nothing is within, before any work."""
        if self._cuts_some:
            check_uncut(opened)
            if self.clock is None:
                self.sizes.ladder(self.budgets, len(opened))

    def _probed(self) -> MemberModel | None:
        """Return the body with a classifier in closed form; None if TRAIN cannot give it the
        classes.
        """
        model = self.opened.manifest.model
        if self.opened.family.named_classes:
            return None
        member = self.probe or probe_of(self.models[0].file, self.options, model.task)
        self._make(member)
        fitted = open_single(member.file).manifest.model
        if fitted.num_classes != model.num_classes or model.labels not in (None, fitted.labels):
            return None
        return member

    @property
    def _is_quick(self) -> bool:
        """True if the first probe of a body did not read all rows that a probe reads."""
        return any(step.key == "wide" for step in self.plan.steps)

    def _wider(self) -> Iterator[None]:
        """Fit the probe of a body to more rows."""
        self.probe = probe_of(self.options.paths[0], self.options)
        self._make(self.probe)
        self.plain.append(Candidate.of(self.probe, name=f"{PROBE} on more rows"))
        yield

    def _tuned(self) -> Iterator[None]:
        """Tune models of a body; if none improves on its start, the probe is the only model."""
        hashes = {self.opened.manifest.weights_sha256}
        for number in range(self.options.seeds or SEEDS):
            member = tuned(number, self.options)
            self._make(member)
            sha256 = open_single(member.file).manifest.weights_sha256
            if sha256 not in hashes:
                hashes.add(sha256)
                member = replace(member, label=f"model {len(self.models) + 1}")
                self.models.append(member)
                self.tried = len(self.models)
                if len(self.models) == 1:
                    self.plain.insert(0, Candidate.of(member, name=SINGLE))
                yield
        if not self.models and self.probe is not None:
            self.models.append(self.probe)

    def _together(self) -> Iterator[None]:
        """Answer with the other models, with their ensemble, and make their mean."""
        count = self.tried = len(self.models)
        self.plain.append(Candidate.of(*self.models, name=f"ensemble of {count}"))
        yield
        cuts = self._cuts(self.models)
        if not averaged(cuts.opened):
            return
        self._make(mean := cuts.mean())
        self.mean = (mean,)
        self.plain.insert(-1, Candidate.of(mean, name=f"mean of {count}"))
        yield

    def _smaller_probe(self) -> Iterator[None]:
        """Cut the probe for budgets that have no file yet: to tune models of a large table takes long."""
        assert self.probe is not None
        for budget in self.missing:
            self.options.note(f"{budget}: no file yet; the probe is cut to smaller sizes")
        yield from self._smaller(self.missing, [self.probe])

    def _smaller(
        self, budgets: Sequence[Budget], unpruned: Sequence[MemberModel]
    ) -> Iterator[None]:
        """Cut models to every size that fills a budget, alone or together."""
        costs, cuts = in_macs(budgets, self.sizes, self.clock), self._cuts(unpruned)
        sizes = self.sizes.ladder(costs, len(unpruned))
        with sharing():
            for number, member in enumerate(unpruned):
                self.plan.tick(
                    f"scores of {member.label}", number * len(sizes), len(unpruned) * len(sizes)
                )
                for size in sizes:
                    cut = cuts.cut(member, size, self.sizes)
                    if cut not in self.cuts:
                        self._make(cut)
                        self.cuts.append(cut)
                        yield

    def _make(self, member: MemberModel) -> None:
        self.workshop.make(member.making)

    def _cuts(self, models: Sequence[MemberModel]) -> Cuts:
        arch = self.options.arch
        opened = [undecided(open_single(model.file, arch=arch)) for model in models]
        return Cuts(models, opened, self.options)

    @property
    def _transform(self) -> Callable[[Any], Any]:
        return self.opened.family.transform(self.opened.manifest.model, files=self.opened.files)

    @cached_property
    def costs(self) -> CandidateCosts:
        """Costs of the candidates."""
        return CandidateCosts(self.options, self.workshop, self.clock, lambda: self._reading)

    @cached_property
    def sizes(self) -> ModelSizes:
        """Sizes of this architecture."""
        return ModelSizes(self.opened, self._one, self.options)

    @cached_property
    def _one(self) -> Any:
        """One sample."""
        return first_batch(
            self.answer_store.val, self._transform, 1, skip_bad=self.options.skip_bad
        )

    @property
    def members(self) -> list[MemberModel]:
        """All models that were made so far."""
        return [*self.models[: self.tried], *self.mean, *self.cuts]

    @property
    def candidates(self) -> list[Candidate]:
        """The plain rivals, each other model alone, and the best two, three and more of one size
        together.
        """
        members, choices = self.members, [*self.plain]
        groups = [[member] for member in members]
        for size in dict.fromkeys(member.size for member in members):
            best = [m for m in members if m.size == size and m not in self.mean]
            if len(best) > 1:  # one alone may never be asked
                best.sort(key=self._value_of, reverse=True)
            counts = range(2, min(len(best), MOST_MEMBERS) + 1)
            groups += [[m for m in members if m in best[:count]] for count in counts]
        # What is a plain rival has its name.
        named = [choice.members for choice in self.plain]
        return choices + [Candidate.of(*group) for group in groups if (*group,) not in named]

    def _value_of(self, member: MemberModel) -> float:
        """Return what a model is worth alone in float32."""
        return self.table.entry(self.costs.in_engines(Candidate.of(member))[0]).value

    @cached_property
    def table(self) -> CandidateTable:
        """The one table; what may be lost of accuracy is known once the first model answered."""
        table = CandidateTable(
            BuildObjective(self.options.goal),
            self.answer_store.read,
            self.costs.cost,
            words=lambda: self.words,
            task=self.answer_store.task,
            leaves_out=() if self.opened.family.named_classes else ZERO_SHOT,
            seed=self.options.seed,
        )
        if self.options.sees_ood:
            answers = table.entry(self.plain[0]).answers
            right = right_of(answers.quality(*answers.everything)).item()
            table.objective.floor = right - SPARE
        return table

    @cached_property
    def words(self) -> Sequence[ndarray] | None:
        """Outputs of a word reader; None if the data are no texts, or cannot fit one."""
        model, task = self.opened.manifest.model, self.answer_store.task
        text = getattr(self._transform, "kind", "image") == "text"
        if not text:
            return None
        if lacks(task, model.num_classes, self.data, first=False) is not None:
            return None
        return self.answer_store.words(lambda samples: self._reading.read(samples))

    @cached_property
    def _reading(self) -> Reading:
        model, val = self.opened.manifest.model, self.answer_store.val
        # Weights beside a model are fitted for each; here any answers do, and 8 bits are soonest.
        engine = self.costs.in_engines(self.plain[0])[-1].engine
        outputs = self.answer_store.read(self.plain[0].members[0], engine).sets[0]
        parts = halves(len(val), self.options.seed, outputs.groups)
        learnt = lesson(self.data)
        if self.options.crossed:
            learnt = replace(learnt, folds=folds_of(self.data))
        lessons = learnt, lesson(val), outputs, parts
        tokenizer, see = model.preprocess.get("files_sha256"), seer(self._transform)
        return fit_reading(self.answer_store.task, see, tokenizer, *lessons)[0]

    def ways(self, choice: Candidate, budget: Budget) -> list[Candidate]:
        """Return a choice in each engine, with words and without."""
        ways = self.costs.in_engines(choice)
        if not self.reads_words:
            return ways
        blend = [replace(way, words="blend") for way in ways]
        if self.clock is None or choice.count > 1 or self.answer_store.task.link == "square":
            return ways + blend
        # In the fastest engine: the more rows go on the better, and OOD samples must.
        fastest, most = self.costs.most_on(ways, budget)
        if LEAST_ON < most < MOST_ON:
            return [*ways, *blend, replace(fastest, words="cascade", most_on=most)]
        return ways + blend


def averaged(opened: Sequence[Single]) -> bool:
    """Return True if the models share a start, so that their mean resembles them."""
    try:
        check_common_start(opened, list(opened[0].weights), "--mean")
    except SurgeryError:
        return False
    return True
