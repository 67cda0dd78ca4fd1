"""The plot of an evaluation: bars of the measures, and the confidences of answerable and other questions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyrag.beir import MEASURES, Measured
from pyrag.calibration import reliability
from pyrag.calibration_report import Report
from pyrag.errors import InvalidRequest

_KINDS = (".pdf", ".png", ".svg")
_BINS = 25


def check_plot(path: Path) -> None:
    """Raises `InvalidRequest` when a plot cannot be made, so that nobody waits for one in vain."""
    if path.suffix.lower() not in _KINDS:
        raise InvalidRequest(f"--plot {path}: the name must end in {', '.join(_KINDS)}")
    if not path.resolve().parent.is_dir():
        raise InvalidRequest(f"--plot {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise InvalidRequest(
            "--plot needs matplotlib, which is not installed",
            hint="It comes with the extra plots. In a checkout: pip install -e '.[plots]'",
        )


def write_plot(path: Path, results: Sequence[tuple[str, Measured]]) -> None:
    """Writes the plot of one or two results with their names."""
    from matplotlib.figure import Figure

    rows = [(name, result) for name, result in results if result.dataset.unanswerable]
    figure: Any = Figure(figsize=(7, 3.5 + 2.5 * len(rows)), layout="constrained")
    axes = figure.subplots(1 + len(rows), 1, squeeze=False)[:, 0]
    _bars(axes[0], results)
    for axis, (name, result) in zip(axes[1:], rows, strict=True):
        _distributions(axis, name, result)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InvalidRequest(f"--plot {path} cannot be written: {error.strerror or error}") from None


def _bars(axis: Any, results: Sequence[tuple[str, Measured]]) -> None:
    width = 0.8 / len(results)
    for number, (name, result) in enumerate(results):
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(MEASURES))]
        values = [result.metrics[measure] for measure in MEASURES]
        axis.bar_label(axis.bar(places, values, width * 0.95, label=name), fmt="%.3f", fontsize=8)
    first = results[0][1]
    axis.set_xticks(range(len(MEASURES)), MEASURES)
    axis.set_ylim(0, 1.1)
    axis.set_ylabel("mean over questions")
    axis.set_title(
        f"{first.dataset.name}: {len(first.dataset.answerable)} questions, {first.documents} documents"
    )
    if len(results) > 1:
        axis.legend(loc="lower right", fontsize=8)


def _distributions(axis: Any, name: str, result: Measured) -> None:
    refusal = result.refusal
    assert refusal is not None
    kinds = (("answerable", result.dataset.answerable), ("not answerable", result.dataset.unanswerable))
    confidences = [result.confidences(questions) for _, questions in kinds]
    axis.hist(
        confidences,
        bins=[place / _BINS for place in range(_BINS + 1)],
        weights=[[1 / len(each)] * len(each) for each in confidences],
        label=[f"{kind} ({len(questions)})" for kind, questions in kinds],
        histtype="stepfilled",
        alpha=0.6,
    )
    axis.axvline(refusal.threshold, color="black", linestyle="--", label=f"threshold {refusal.threshold:.2f}")
    axis.set_xlabel("confidence")
    axis.set_ylabel("share of questions")
    axis.set_title(f"{name}: AUROC {refusal.auroc:.3f}")
    axis.legend(fontsize=8)


# A calibration -------------------------------------------------------------------------------------


def write_calibration(path: Path, report: Report) -> None:
    """Writes the plot of a calibration: confidences of each kind of question, how often they are right."""
    from matplotlib.figure import Figure

    fit = report.fit
    assert fit is not None
    figure: Any = Figure(figsize=(7, 8), layout="constrained")
    above, below = figure.subplots(2, 1)
    kinds: dict[str, list[float]] = {kind: [] for kind in report.labelled.kinds}
    for case, confidence in zip(report.labelled.cases, fit.confidences, strict=True):
        kinds[case.kind].append(confidence)
    above.hist(
        list(kinds.values()),
        bins=[place / _BINS for place in range(_BINS + 1)],
        weights=[[1 / len(each)] * len(each) for each in kinds.values()],
        label=[f"{kind} ({len(each)})" for kind, each in kinds.items()],
        histtype="stepfilled",
        alpha=0.5,
    )
    for errors in fit.figures.errors:
        if errors.threshold != report.threshold:
            above.axvline(errors.threshold, color="grey", linestyle=":", linewidth=0.8)
    above.axvline(report.threshold, color="black", linestyle="--", label=f"threshold {report.threshold:.2f}")
    above.set_xlabel("confidence of a question not fitted on")
    above.set_ylabel("share of questions")
    low, high = fit.figures.interval
    above.set_title(f"{report.name}: AUROC {fit.figures.auroc:.3f} ({low:.3f} to {high:.3f})")
    above.legend(fontsize=8)
    _reliability(below, reliability(report.labelled.cases, fit.confidences))
    _save(figure, path)


def _reliability(axis: Any, points: Sequence[tuple[float, float, tuple[float, float]]]) -> None:
    said = [point[0] for point in points]
    was = [point[1] for point in points]
    ends = [
        [max(0.0, share - interval[0]) for _, share, interval in points],
        [max(0.0, interval[1] - share) for _, share, interval in points],
    ]
    axis.plot([0, 1], [0, 1], color="grey", linestyle=":", linewidth=0.8)
    axis.errorbar(said, was, yerr=ends, marker="o", capsize=3)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_xlabel("confidence, mean of a tenth")
    axis.set_ylabel("share that is answerable")
    axis.set_title("how often a confidence is right, both classes counting the same")
