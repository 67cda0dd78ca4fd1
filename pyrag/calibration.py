"""How the signals of a retrieval become a probability: the fit, and figures on questions it has not seen."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from pyrag.beir import auroc
from pyrag.errors import InvalidRequest
from pyrag.lexical import same_text

LEAST = 20  # questions of each class, and of a kind of negatives that is judged by itself
LEAST_AUROC = 0.8  # for the lower end of its interval
LEAST_OF_LANGUAGE = 10  # questions of each class, for a weight of its own for Chinese, Japanese and Korean
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
ANSWERABLE = "answerable"
_FOLDS = 10
_STANDARD_ERRORS = 2.0  # by which similarity must lower the loss
_PRIOR = 1000.0  # variance of the weights before the questions are seen: some tens are free
_Z = 1.959964  # 95 %


@dataclass(frozen=True, slots=True)
class Case:
    """A question, whether its answer is there, and what the search gave for it.

    `kind` is `answerable` or the kind of negative; `base` tells questions of several collections apart.
    `answered` is what the settings in force decide, by the threshold `threshold`.
    """

    id: str
    question: str
    kind: str
    similarity: float
    coverage: float
    cjk_share: float
    base: str = ""
    answered: bool = False
    threshold: float = 0.5

    @property
    def answerable(self) -> bool:
        """Whether the answer is there."""
        return self.kind == ANSWERABLE

    @property
    def is_cjk(self) -> bool:
        """Whether the question is mostly Chinese, Japanese or Korean."""
        return self.cjk_share >= 0.5


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of `rag.answer_probability`."""

    intercept: float
    similarity: float
    coverage: float
    cjk: float

    def probability(self, case: Case) -> float:
        """The same as `rag.answer_probability`."""
        odds = (
            self.intercept
            + self.similarity * case.similarity
            + self.coverage * case.coverage
            + self.cjk * case.cjk_share
        )
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, odds))))

    @property
    def cjk_ratio(self) -> float:
        """How much coverage a question that is all CJK is given."""
        return self.cjk / self.coverage if self.coverage > 0 else 0.0

    def as_list(self) -> list[float]:
        """In the order of `rag.set_calibration`."""
        return [self.intercept, self.similarity, self.coverage, self.cjk]


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many, with the 95 % interval of the share; of several kinds each kind counts the same."""

    count: int
    total: int
    kinds: tuple[Share, ...] = ()

    @classmethod
    def of_kinds(cls, kinds: Sequence[Share]) -> Share:
        """The mean of the shares of several kinds."""
        if len(kinds) == 1:
            return kinds[0]
        return cls(sum(each.count for each in kinds), sum(each.total for each in kinds), tuple(kinds))

    @property
    def value(self) -> float:
        """The share, 0 of none."""
        if self.kinds:
            return fmean(each.value for each in self.kinds)
        return self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval (Journal of the American Statistical Association 22, 1927)."""
        number = effective_number([each.total for each in self.kinds or (self,)])
        return wilson(self.value * number, number)


@dataclass(frozen=True, slots=True)
class Errors:
    """What goes wrong at a threshold: questions answered that have no answer, and the other way round."""

    threshold: float
    wrong_answers: Share
    wrong_refusals: Share
    by_kind: dict[str, Share]  # wrong answers of each kind of negative

    @property
    def total(self) -> float:
        """Both shares together: each class and kind counts the same, however many questions it has."""
        return self.wrong_answers.value + self.wrong_refusals.value


@dataclass(frozen=True, slots=True)
class Figures:
    """How well confidences tell the classes apart; every kind of negatives counts the same."""

    auroc: float  # the mean of the kinds
    interval: tuple[float, float]  # 95 %
    auroc_by_kind: dict[str, float]
    interval_by_kind: dict[str, tuple[float, float]]
    errors: list[Errors]  # at THRESHOLDS and the threshold in force
    best: Errors  # where both shares together are least


@dataclass(frozen=True, slots=True)
class Fit:
    """Weights, and the confidences that each question has by weights fitted without it."""

    weights: Weights
    own_cjk: bool  # whether the weight of the CJK share was fitted, or its ratio kept
    separate: bool  # whether every answerable question is above all others: nothing bounds how steep it is
    confidences: list[float]  # in the order of the cases
    figures: Figures


def check_library() -> None:
    """Raises `InvalidRequest` when scikit-learn is not installed."""
    if find_spec("sklearn") is None:
        raise InvalidRequest(
            "rag calibrate needs scikit-learn, which is not installed",
            hint="It comes with the extra calibrate. In a checkout: pip install -e '.[calibrate]'",
        )


# The fit -------------------------------------------------------------------------------------------


def fit(cases: Sequence[Case], cjk_ratio: float, threshold: float = 0.5) -> Fit:
    """Weights for these cases, with out-of-fold confidences and figures.

    `cjk_ratio` is the one to keep where one language has too few questions to fit it. Needs both classes.
    """
    check_library()
    own = _both_languages(cases)
    confidences = out_of_fold(cases, lambda part: fit_weights(part, None if own else cjk_ratio))
    weights = fit_weights(cases, None if own else cjk_ratio)
    return Fit(
        weights,
        own,
        _separate(cases, weights),
        confidences,
        figures(cases, confidences, threshold),
    )


def fit_weights(cases: Sequence[Case], cjk_ratio: float | None, similarity: bool | None = None) -> Weights:
    """Logistic regression, classes and in them kinds counting the same.

    The weight of similarity is 0 unless it lowers the loss on questions not fitted on by two standard
    errors: it costs more than it brings where it only follows coverage. `similarity` True or False decides
    that beforehand; `cjk_ratio` None fits the weight of the CJK share.
    """
    if similarity is not None:
        return _regress(cases, cjk_ratio, similarity)
    plain = _regress(cases, cjk_ratio, with_similarity=False)
    more = _regress(cases, cjk_ratio, with_similarity=True)
    if more.similarity <= 0 or more.coverage < 0:
        return plain
    both = [
        losses(cases, out_of_fold(cases, lambda part, use=use: _regress(part, cjk_ratio, use)))  # type: ignore[misc]
        for use in (False, True)
    ]
    weights = balance(cases)
    gains = [before - after for before, after in zip(*both, strict=True)]
    total = sum(weights)
    gain = sum(w * g for w, g in zip(weights, gains, strict=True)) / total
    error = math.sqrt(sum((w * (g - gain)) ** 2 for w, g in zip(weights, gains, strict=True))) / total
    return more if gain > _STANDARD_ERRORS * error else plain


def out_of_fold(cases: Sequence[Case], fitted: Callable[[list[Case]], Weights]) -> list[float]:
    """The confidence of each case by weights fitted on the other folds, always the same folds.

    A question that is asked twice, with and without its notes, is in one fold; each fold has its share of
    every kind.
    """
    kinds: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for case in cases:
        kinds[same_text(case.question)].add((case.base, case.kind))
    questions = sorted(
        kinds, key=lambda each: (sorted(kinds[each]), hashlib.sha256(each.encode()).digest(), each)
    )
    place = {question: number % _FOLDS for number, question in enumerate(questions)}
    confidences = [0.0] * len(cases)
    for fold in range(_FOLDS):
        held = [number for number, case in enumerate(cases) if place[same_text(case.question)] == fold]
        if not held:
            continue
        weights = fitted([case for case in cases if place[same_text(case.question)] != fold])
        for number in held:
            confidences[number] = weights.probability(cases[number])
    return confidences


def balance(cases: Sequence[Case]) -> list[float]:
    """What each case counts, 1 in the mean: both classes the same, and in a class all bases and kinds."""
    sizes = Counter((case.base, case.kind) for case in cases)
    cells = Counter(kind == ANSWERABLE for _, kind in sizes)
    return [
        len(cases) / (len(cells) * cells[case.answerable] * sizes[case.base, case.kind]) for case in cases
    ]


def _regress(cases: Sequence[Case], cjk_ratio: float | None, with_similarity: bool) -> Weights:
    from sklearn.linear_model import LogisticRegression

    def features(case: Case) -> list[float]:
        words = (
            [case.coverage, case.cjk_share]
            if cjk_ratio is None
            else [case.coverage + cjk_ratio * case.cjk_share]
        )
        return [*words, case.similarity] if with_similarity else words

    model: Any = LogisticRegression(C=_PRIOR, solver="newton-cholesky", max_iter=1000)
    with warnings.catch_warnings():
        # classes that separate completely leave little curvature: scikit-learn says so and goes on with
        # another solver; the report says it in words of its own
        warnings.simplefilter("ignore")
        model.fit(
            [features(case) for case in cases],
            [case.answerable for case in cases],
            sample_weight=balance(cases),
        )
    found = [float(each) for each in model.coef_[0]]
    similarity = found.pop() if with_similarity else 0.0
    coverage = found[0]
    cjk = found[1] if cjk_ratio is None else cjk_ratio * coverage
    return Weights(float(model.intercept_[0]), similarity, coverage, cjk)


def losses(cases: Sequence[Case], confidences: Sequence[float]) -> list[float]:
    """The log loss of each case."""
    return [
        -math.log(max(1e-12, confidence if case.answerable else 1 - confidence))
        for case, confidence in zip(cases, confidences, strict=True)
    ]


def _separate(cases: Sequence[Case], weights: Weights) -> bool:
    def odds(case: Case) -> float:
        """What the probability follows, without the rounding of one next to 0 or 1."""
        return (
            weights.similarity * case.similarity
            + weights.coverage * case.coverage
            + weights.cjk * case.cjk_share
        )

    least = min(odds(case) for case in cases if case.answerable)
    return least > max(odds(case) for case in cases if not case.answerable)


def _both_languages(cases: Sequence[Case]) -> bool:
    counts = Counter((case.is_cjk, case.answerable) for case in cases)
    return all(
        counts[cjk, answerable] >= LEAST_OF_LANGUAGE for cjk in (True, False) for answerable in (True, False)
    )


# Figures -------------------------------------------------------------------------------------------


def figures(cases: Sequence[Case], confidences: Sequence[float], threshold: float) -> Figures:
    """How well these confidences tell the classes of the cases apart."""
    groups: dict[str, list[float]] = defaultdict(list)
    for case, confidence in zip(cases, confidences, strict=True):
        groups[case.kind].append(confidence)
    yes = groups.pop(ANSWERABLE)
    areas = {kind: auroc(yes, group) for kind, group in groups.items()}
    area = fmean(areas.values())

    def errors(at: float) -> Errors:
        return count_errors(cases, [each >= at for each in confidences], at)

    steps = [errors(step / 100) for step in range(1, 100)]
    least = min(each.total for each in steps)
    best = [each for each in steps if each.total == least]
    return Figures(
        area,
        auroc_interval(area, len(yes), effective_number([len(group) for group in groups.values()])),
        areas,
        {kind: auroc_interval(areas[kind], len(yes), len(group)) for kind, group in groups.items()},
        [errors(each) for each in sorted({*THRESHOLDS, threshold})],
        best[len(best) // 2],
    )


def count_errors(cases: Sequence[Case], answered: Sequence[bool], threshold: float) -> Errors:
    """What goes wrong where these questions are answered and the others refused."""
    counts = Counter(zip((case.kind for case in cases), answered, strict=True))
    kinds = dict.fromkeys(case.kind for case in cases if not case.answerable)
    by_kind = {kind: Share(counts[kind, True], counts[kind, True] + counts[kind, False]) for kind in kinds}
    refused = counts[ANSWERABLE, False]
    return Errors(
        threshold,
        Share.of_kinds(list(by_kind.values())),
        Share(refused, refused + counts[ANSWERABLE, True]),
        by_kind,
    )


def effective_number(sizes: Sequence[int]) -> float:
    """How many questions kinds of these sizes are worth where every kind counts the same.

    The square of the sum of what the questions count by the sum of squares (Kish, Survey Sampling, 1965).
    """
    return len(sizes) ** 2 / sum(1 / size for size in sizes) if all(sizes) else 0.0


def reliability(
    cases: Sequence[Case], confidences: Sequence[float]
) -> list[tuple[float, float, tuple[float, float]]]:
    """For each tenth of confidence its mean, the share that is answerable, and the 95 % interval of that.

    Questions count as in the fit. The interval is Wilson's for the effective number of questions, the square
    of the sum of what they count by the sum of squares (Kish, Survey Sampling, 1965).
    """
    tenths: dict[int, list[tuple[float, float, bool]]] = defaultdict(list)
    for case, confidence, weight in zip(cases, confidences, balance(cases), strict=True):
        tenths[min(9, int(confidence * 10))].append((confidence, weight, case.answerable))
    points = []
    for _, found in sorted(tenths.items()):
        total = sum(weight for _, weight, _ in found)
        share = sum(weight for _, weight, yes in found if yes) / total
        number = total * total / sum(weight * weight for _, weight, _ in found)
        mean = sum(confidence * weight for confidence, weight, _ in found) / total
        points.append((mean, share, wilson(share * number, number)))
    return points


def wilson(count: float, total: float) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson, JASA 22, 1927); 0 to 1 of none."""
    if total == 0:
        return 0.0, 1.0
    share, square = count / total, _Z * _Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total**2)) / (1 + square / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def auroc_interval(area: float, higher: float, lower: float) -> tuple[float, float]:
    """The 95 % interval of an AUROC of so many against so many questions.

    The areas from which the one found is 1.96 standard errors away, with the variance of Hanley and McNeil at
    that area (Newcombe, Statistics in Medicine 25, 2006, part 2, method 5): unlike a symmetric interval it
    has a width where the classes do not overlap at all.
    """
    mean = (higher + lower) / 2 - 1

    def distance(theta: float) -> float:
        rest = 1 - theta
        spread = 1 + mean * rest / (2 - theta) + mean * theta / (1 + theta)
        return (area - theta) ** 2 - _Z * _Z * theta * rest * spread / (higher * lower)

    def root(inside: float, outside: float) -> float:
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if distance(middle) <= 0 else (inside, middle)
        return (inside + outside) / 2

    return root(area, 0.0), root(area, 1.0)
