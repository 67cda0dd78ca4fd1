"""The plots of an evaluation's report: SVG that stands in the page, and text made fit for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from pyrag.beir import MEASURES, Measured
from pyrag.redaction import BIDI_CONTROLS

_BINS = 20
_CLASSES = ("first", "second")  # of the bars of a series
_LEFT, _WIDTH, _HEIGHT, _BASE = 36, 310, 130, 180  # of a plot's axes; as wide as a small telephone
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_BIDI = re.compile(f"[{BIDI_CONTROLS}]")


def html_text(text: str) -> str:
    """A text that cannot be anything but text.

    Characters that HTML does not allow are replaced, those that turn the direction round are escaped.
    """
    return escape(_BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", _CONTROL.sub("\ufffd", text)))


def histogram(kinds: dict[str, list[float]], threshold: float) -> str:
    """Confidences of one or two kinds of questions, as shares of each, with the threshold."""
    kinds = {kind: values for kind, values in kinds.items() if values}
    shares = []
    for values in kinds.values():
        counts = [0] * _BINS
        for value in values:
            counts[min(_BINS - 1, int(value * _BINS))] += 1
        shares.append([count / len(values) for count in counts])
    top = max(max(each) for each in shares)
    left, width, height, base = _LEFT, _WIDTH, _HEIGHT, _BASE
    step = width / _BINS
    bar = (step - 2) / len(shares)  # side by side
    bars = []
    for number, (kind, each) in enumerate(zip(kinds, shares, strict=True)):
        for place, share in enumerate(each):
            if share:
                bars.append(
                    f'<rect class="{_CLASSES[number]}" x="{left + place * step + 1 + number * bar:.1f}"'
                    f' y="{base - share / top * height:.1f}" width="{bar:.1f}"'
                    f' height="{share / top * height:.1f}"><title>{html_text(kind)}:'
                    f" {place / _BINS:.2f} to {(place + 1) / _BINS:.2f}: {share:.1%}</title></rect>"
                )
    at = left + threshold * width
    ticks = "".join(
        f'<text x="{left + tick / 5 * width:.1f}" y="{base + 16}" text-anchor="middle">{tick / 5:.1f}</text>'
        for tick in range(6)
    )
    names = [f"{kind} ({len(values)})" for kind, values in kinds.items()]
    return _figure(
        f'{"".join(bars)}<path class="axis" d="M{left} {base - height}V{base}H{left + width}"/>'
        f'<path class="threshold" d="M{at:.1f} {base - height - 5}V{base}"/>'
        f'<text x="{left - 5}" y="{base - height + 5}" text-anchor="end">{top:.0%}</text>{ticks}'
        f'<text x="{left + width / 2}" y="{base + 34}" text-anchor="middle">confidence;'
        f" dashed: threshold {threshold:.2f}</text>",
        names,
        f"Confidence of {' and '.join(names)}",
    )


def measure_bars(results: Sequence[tuple[str, Measured]]) -> str:
    """The measures of one or two results with their names."""
    left, width, height, base = _LEFT, _WIDTH, _HEIGHT, _BASE
    step = width / len(MEASURES)
    bar = step * 0.8 / len(results)
    bars = []
    for number, (_, result) in enumerate(results):
        for place, name in enumerate(MEASURES):
            value = result.metrics[name]
            x = left + place * step + step * 0.1 + number * bar
            bars.append(
                f'<rect class="{_CLASSES[number]}" x="{x:.1f}" y="{base - value * height:.1f}"'
                f' width="{bar - 2:.1f}" height="{value * height:.1f}"/>'
                f'<text class="value" x="{x + bar / 2:.1f}" y="{base - value * height - 4:.1f}"'
                ' text-anchor="middle">'
                f"{value:.3f}</text>"
            )
    names = "".join(
        f'<text x="{left + (place + 0.5) * step:.1f}" y="{base + 16}" text-anchor="middle">{name}</text>'
        for place, name in enumerate(MEASURES)
    )
    axis = f'<path class="axis" d="M{left} {base - height}V{base}H{left + width}"/>'
    return _figure("".join(bars) + axis + names, [name for name, _ in results], "Means over the questions")


def _figure(body: str, names: Sequence[str], label: str) -> str:
    """An SVG with a legend for one or two series."""
    legend = "".join(
        f'<rect class="{_CLASSES[number]}" x="{_LEFT}" y="{2 + number * 15}" width="11" height="11"/>'
        f'<text x="{_LEFT + 16}" y="{12 + number * 15}">{html_text(_short(name))}</text>'
        for number, name in enumerate(names)
    )
    about = f'viewBox="0 0 360 220" role="img" aria-label="{html_text(label)}"'
    return f"<figure><svg {about}>{legend}{body}</svg></figure>"


def _short(name: str) -> str:
    return name if len(name) <= 50 else f"{name[:49]}…"
