"""The plot of an evaluation: bars of the measures, and the confidences of answerable and other questions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyrag.beir import MEASURES, Measured
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
