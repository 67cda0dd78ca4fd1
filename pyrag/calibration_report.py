"""A calibration as it is reported: what was asked, what came out, and what stands against setting it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyrag.calibration import (
    LEAST,
    LEAST_AUROC,
    Case,
    Errors,
    Figures,
    Fit,
    Share,
    Weights,
    count_errors,
    figures,
    fit,
)
from pyrag.db import Index
from pyrag.labelled import HELD_OUT, OFF_TOPIC, OWN, Labelled
from pyrag.lexical import same_text
from pyrag.models import Retrieval

NEGATIVES = (OWN, OFF_TOPIC, HELD_OUT)


@dataclass(frozen=True, slots=True)
class Report:
    """What `rag calibrate` says. `missing` is what stands against setting it; with few questions no `fit`."""

    name: str  # of the file or folder
    index: Index
    retrieval: Retrieval
    threshold: float  # RAG_MIN_CONFIDENCE
    labelled: Labelled
    fit: Fit | None
    origin: str | None  # of the calibration in force
    now: Figures | None  # by the calibration in force
    missing: list[str]
    decided: Errors | None  # by all settings in force
    floor: float | None  # RAG_MIN_SIMILARITY

    @property
    def fitted_on(self) -> str:
        """Name and kinds of questions with their counts."""
        return f"{self.name}: {', '.join(f'{n} {kind}' for kind, n in self.labelled.kinds.items())}"

    @property
    def at_half(self) -> Errors:
        """The errors at 0.5, which are stored with the calibration."""
        assert self.fit is not None
        return next(each for each in self.fit.figures.errors if each.threshold == 0.5)

    def summary(self) -> dict[str, Any]:
        """The report as `rag calibrate --json` prints it."""
        labelled, fitted = self.labelled, self.fit
        return {
            "source": self.name,
            "provider": self.index.provider,
            "model": self.index.model,
            "retrieval": self.retrieval,
            "threshold": self.threshold,
            "questions": labelled.kinds,
            "without_words": labelled.without_words,
            "unknown_sources": labelled.unknown,
            "repeated": labelled.repeated,
            "absent_sources": labelled.absent,
            "not_found": labelled.not_found,
            "weights": _weights(fitted.weights) if fitted else None,
            "out_of_fold": _figures(fitted.figures) if fitted else None,
            "separate": fitted.separate if fitted else None,
            "in_force": {"origin": self.origin, **_figures(self.now)} if self.now else None,
            "decided": _errors(self.decided) if self.decided else None,
            "min_similarity": self.floor,
            "missing": self.missing,
        }


def make_report(
    name: str,
    index: Index,
    retrieval: Retrieval,
    threshold: float,
    labelled: Labelled,
    calibrations: Sequence[dict[str, Any]],
    floor: float | None = None,
) -> Report:
    """Fits these cases if they suffice. `calibrations` as `Database.list_calibrations` gives them."""
    current = in_force(calibrations, retrieval)
    cases = labelled.cases
    missing = [*_unknown(labelled), *_too_few(labelled)]
    fitted = now = decided = None
    if not _too_few(labelled):
        # coverage and CJK share are the same in both ways of retrieval: the words' ratio serves both
        known = current or in_force(calibrations, "lexical")
        fitted = fit(cases, weights_of(known).cjk_ratio if known else 0.0, threshold)
        missing += _not_separate(fitted, cases)
        decided = count_errors(cases, [case.answered for case in cases], cases[0].threshold)
        if current:
            weights = weights_of(current)
            now = figures(cases, [weights.probability(case) for case in cases], threshold)
    origin = current["origin"] if current else None
    return Report(name, index, retrieval, threshold, labelled, fitted, origin, now, missing, decided, floor)


def in_force(calibrations: Sequence[dict[str, Any]], retrieval: Retrieval) -> dict[str, Any] | None:
    """The row in force for a way of retrieval, None without one."""
    return next((row for row in calibrations if row["in_force"] and row["retrieval"] == retrieval), None)


def weights_of(row: dict[str, Any]) -> Weights:
    """The parameters of a row of rag.calibrations."""
    return Weights(row["intercept"], row["similarity_weight"], row["coverage_weight"], row["cjk_weight"])


def _unknown(labelled: Labelled) -> list[str]:
    """Answerable questions that this index cannot answer: perhaps it holds another vault."""
    if not labelled.unknown:
        return []
    shown = [f"{key} ({', '.join(sources)})" for key, sources in labelled.unknown.items()]
    return [
        f"the notes of {len(shown)} answerable questions are not in the index: {_first(shown)};"
        " ingest their vault or correct expected_sources"
    ]


def _too_few(labelled: Labelled) -> list[str]:
    yes, no = (
        _distinct(each for each in labelled.cases if each.answerable is want) for want in (True, False)
    )
    ways = "no_answer entries, --off-topic FILE or --held-out"
    found = []
    if yes < LEAST:
        found.append(f"{yes} answerable questions, at least {LEAST} are needed: {LEAST - yes} are missing")
    if no < LEAST:
        found.append(
            f"{no} unanswerable questions, at least {LEAST} are needed: {LEAST - no} are missing ({ways})"
        )
    return found


def _distinct(cases: Iterable[Case]) -> int:
    return len({same_text(case.question) for case in cases})


def _not_separate(fitted: Fit, cases: Sequence[Case]) -> list[str]:
    """Of all kinds together and of each with enough questions: easy ones do not make up for hard ones."""
    figures = fitted.figures
    judged = [("the classes", figures.auroc, figures.interval)]
    if len(figures.auroc_by_kind) > 1:
        judged += [
            (f"answerable and {kind} questions", area, figures.interval_by_kind[kind])
            for kind, area in figures.auroc_by_kind.items()
            if _distinct(case for case in cases if case.kind == kind) >= LEAST
        ]
    found = [
        f"{what} do not separate: AUROC {area:.3f}, 95 % interval {low:.3f} to {high:.3f}, whose lower end"
        f" must reach {LEAST_AUROC}; ask more questions if the interval is wide, else look at the plot and at"
        " the questions that are on the wrong side"
        for what, area, (low, high) in judged
        if low < LEAST_AUROC
    ]
    if fitted.weights.coverage <= 0:
        found.append(
            "answerable questions have no higher coverage than others: are the labels the wrong way round?"
        )
    return found


def _first(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _weights(weights: Weights) -> dict[str, float]:
    names = ("intercept", "similarity", "coverage", "cjk_share")
    return {name: round(value, 6) for name, value in zip(names, weights.as_list(), strict=True)}


def _figures(found: Figures) -> dict[str, Any]:
    return {
        "auroc": round(found.auroc, 6),
        "auroc_interval": [round(each, 6) for each in found.interval],
        "auroc_by_kind": {kind: round(area, 6) for kind, area in found.auroc_by_kind.items()},
        "auroc_interval_by_kind": {
            kind: [round(each, 6) for each in interval] for kind, interval in found.interval_by_kind.items()
        },
        "errors": [_errors(each) for each in found.errors],
        "fewest_errors": _errors(found.best),
    }


def _errors(errors: Errors) -> dict[str, Any]:
    return {
        "threshold": errors.threshold,
        "wrong_answers": _share(errors.wrong_answers),
        "wrong_refusals": _share(errors.wrong_refusals),
        "wrong_answers_by_kind": {kind: _share(share) for kind, share in errors.by_kind.items()},
    }


def _share(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {
        "count": share.count,
        "of": share.total,
        "share": round(share.value, 6),
        "interval": [round(low, 6), round(high, 6)],
    }
