"""An evaluation as one HTML page that needs nothing else: no script, no font, no request.

Everything that comes from notes and questions is escaped; the plots are SVG in the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from pyrag import __version__
from pyrag.beir import PAIRED, Comparison, Measured
from pyrag.errors import InvalidRequest
from pyrag.eval_svg import histogram, html_text, measure_bars
from pyrag.evaluation import Outcome
from pyrag.schemas import ExplainResponse

NAME = "report.html"
MISSES = 50  # of a retrieval set
_CANDIDATES = 20  # rows of a miss
_SHORT = 12  # characters of a cell that are not broken
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #595959; --paper: #fff; --line: #cfcfcf;
  --good: #1a6fb5; --bad: #b3460b; --panel: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #b0b0b0; --paper: #161616;
  --line: #444; --good: #6db3f2; --bad: #f2955a; --panel: #222; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.3rem; } h3 { font-size: 1.05rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .5rem; border-bottom: 1px solid var(--line);
  unicode-bidi: isolate; }
th, .short { overflow-wrap: normal; }
table.facts, table.summary { table-layout: fixed; overflow-wrap: break-word; }
table.facts th, table.summary th:first-child { width: 40%; }
table.facts th, table.summary th { font-weight: 600; overflow-wrap: break-word; }
.wrong { color: var(--bad); font-weight: 600; }
.soft { color: var(--soft); }
article { border: 1px solid var(--line); border-radius: .4rem; padding: .25rem .75rem; margin: 1rem 0; }
figure { margin: 1rem 0; } svg { width: 100%; max-width: 30rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; } svg text.value { font-size: 9px; }
svg .axis { stroke: var(--soft); fill: none; } svg .threshold { stroke: var(--ink); stroke-dasharray: 5 4; }
svg .first { fill: var(--good); } svg .second { fill: var(--bad); }
@media (max-width: 45rem) {
  table.rows, table.rows caption, table.rows tbody, table.rows tr, table.rows td,
  table.facts, table.facts tbody, table.facts tr, table.facts th, table.facts td {
    display: block; width: 100%; }
  table.rows thead { position: absolute; clip-path: inset(50%); height: 1px; width: 1px; overflow: hidden; }
  table.facts th { border: 0; padding-bottom: 0; } table.facts td { padding-top: 0; }
  table.rows tr { border-bottom: 2px solid var(--line); padding: .4rem 0; }
  table.rows td { border: 0; padding: .1rem 0; }
  table.rows td::before { content: attr(data-label) ": "; color: var(--soft); }
}
@media print {
  :root { --ink: #000; --soft: #444; --paper: #fff; --line: #999; --good: #1a6fb5; --bad: #b3460b; }
  body { max-width: none; padding: 0; font-size: 9pt; }
  tr, figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table: text, perhaps from a note, and whether it is something that went wrong."""

    text: str
    wrong: bool = False


Row = Sequence[str | Cell]


def check_report(folder: Path) -> None:
    """Makes the folder. Raises `InvalidRequest` when a report cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"--report {folder}: {error.strerror or error}") from None
    path = folder / NAME
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise InvalidRequest(f"--report {folder}: {NAME} cannot be written there")


def report_questions(
    folder: Path,
    name: str,
    facts: Sequence[tuple[str, str]],
    outcomes: Sequence[Outcome],
    explained: dict[str, ExplainResponse],
) -> Path:
    """Writes the report on questions with known answers, `explained` the misses by id; its path."""
    right = [outcome for outcome in outcomes if outcome.right]
    kinds = {
        kind: [o.response.confidence for o in outcomes if o.question.expected_mode == mode]
        for kind, mode in (("to be answered", "rag"), ("to be refused", "no_answer"))
    }
    threshold = median(outcome.response.threshold for outcome in outcomes)
    summary = [
        ("questions", str(len(outcomes))),
        ("right", f"{len(right)} ({len(right) / len(outcomes):.1%})"),
    ]
    for kind, mode in (("to be answered", "rag"), ("to be refused", "no_answer")):
        part = [outcome for outcome in outcomes if outcome.question.expected_mode == mode]
        if part:
            summary.append((f"{kind}, right", f"{sum(each.right for each in part)} of {len(part)}"))
    rows = [
        (
            outcome.question.id,
            outcome.question.question,
            outcome.response.mode,
            f"{outcome.response.confidence:.4f}",
            outcome.first_source or "–",
            Cell("right" if outcome.right else "wrong", not outcome.right),
            outcome.response.decision.reason,
        )
        for outcome in outcomes
    ]
    misses = [
        _miss(
            outcome.question.id,
            outcome.question.question,
            _expected(outcome),
            explained.get(outcome.question.id),
        )
        for outcome in outcomes
        if not outcome.right
    ]
    head = ("id", "question", "mode", "confidence", "first source", "verdict", "decision")
    return _write(
        folder,
        f"Questions with known answers: {name}",
        [
            _section("Settings and index", _facts(facts)),
            _section("Summary", _facts(summary, "summary")),
            _section("Confidence", histogram(kinds, threshold)),
            _section("Questions", _table(head, rows)),
            _section(
                f"Misses ({len(misses)})", "".join(misses) or "<p>None: every question came out right.</p>"
            ),
        ],
    )


def _expected(outcome: Outcome) -> str:
    question = outcome.question
    expected = " or ".join(question.expected_sources) or "no source"
    got = outcome.first_source or "no source"
    return f"expected {question.expected_mode}, {expected}; got {outcome.response.mode}, {got}"


def report_retrieval(
    folder: Path,
    facts: Sequence[tuple[str, str]],
    results: Sequence[tuple[str, Measured]],
    comparison: Comparison | None = None,
) -> Path:
    """Writes the report on a retrieval set: one result or two with their names. Gives its path."""
    first = results[0][1]
    parts = [
        _section("Settings and index", _facts([*facts, *_index(results)])),
        _section("Summary", _measures(results) + measure_bars(results)),
    ]
    if comparison is not None:
        parts.append(_section("Second less first", _compared(comparison)))
    for name, result in results:
        suffix = f": {name}" if len(results) > 1 else ""
        if result.dataset.unanswerable:
            kinds = {
                "answerable": result.confidences(result.dataset.answerable),
                "not answerable": result.confidences(result.dataset.unanswerable),
            }
        else:
            kinds = {"answerable": result.confidences(result.dataset.answerable)}
        threshold = median(reply.threshold for reply in result.replies.values())
        parts.append(_section(f"Confidence{suffix}", histogram(kinds, threshold)))
    for name, result in results:
        suffix = f": {name}" if len(results) > 1 else ""
        parts.append(_section(f"Questions{suffix}", _asked(result)))
        misses = [_missed(result, key, explained) for key, explained in result.explained.items()]
        title = f"Misses{suffix} (the {len(misses)} worst)" if misses else f"Misses{suffix}"
        parts.append(_section(title, "".join(misses) or "<p>None.</p>"))
    return _write(folder, f"Retrieval on {first.dataset.name}", parts)


# Parts of a retrieval report -----------------------------------------------------------------------


def _index(results: Sequence[tuple[str, Measured]]) -> list[tuple[str, str]]:
    found = []
    for name, result in results:
        prefix = f"{name}: " if len(results) > 1 else ""
        replies = result.replies.values()
        calibrations = sorted({each.calibration for each in replies if each.calibration})
        found += [
            (f"{prefix}embeddings", f"{result.provider} {result.model}"),
            (f"{prefix}retrieval", result.retrieval),
            (f"{prefix}threshold", f"{median(each.threshold for each in replies):.2f}"),
            (f"{prefix}calibration", ", ".join(calibrations) or "none: confidence is the similarity"),
            (f"{prefix}documents", str(result.documents)),
        ]
    return found


def _measures(results: Sequence[tuple[str, Measured]]) -> str:
    rows: dict[str, list[str]] = {}
    for _, result in results:
        rows.setdefault("answerable questions", []).append(str(len(result.dataset.answerable)))
        rows.setdefault("unanswerable questions", []).append(str(len(result.dataset.unanswerable)))
        for name, value in result.metrics.items():
            rows.setdefault(name, []).append(f"{value:.4f}")
        for name, value in result.latency.items():
            rows.setdefault(f"search {name}, ms", []).append(f"{value:.1f}")
        if refusal := result.refusal:
            rows.setdefault("AUROC of the confidence", []).append(f"{refusal.auroc:.4f}")
            rows.setdefault("wrong answers", []).append(f"{refusal.wrong_answers:.1%}")
            rows.setdefault("wrong refusals", []).append(f"{refusal.wrong_refusals:.1%}")
    head = ("figure", *(name for name, _ in results))
    return _table(head, [(name, *values) for name, values in rows.items()], "summary")


def _compared(comparison: Comparison) -> str:
    words = (
        f"{PAIRED} differs by {comparison.mean_difference:+.4f} in the mean: better for {comparison.wins}"
        f" questions, worse for {comparison.losses}, equal for {comparison.ties};"
        f" sign test p = {comparison.p_value:.2g}."
    )
    head = ("id", "question", "relevant", "first", "second", "first hit of the first", "of the second")
    rows = [
        (
            each.id,
            each.question,
            ", ".join(each.relevant),
            f"{each.first:.2f}",
            f"{each.second:.2f}",
            each.first_hit or "–",
            each.second_hit or "–",
        )
        for each in comparison.regressions
    ]
    return f"<p>{html_text(words)}</p>" + (
        _table(head, rows, caption="Questions that got worst") if rows else ""
    )


def _asked(result: Measured) -> str:
    head = ("id", "question", "mode", "confidence", "first source", PAIRED, "verdict", "decision")
    rows = []
    for key, question in (result.dataset.answerable | result.dataset.unanswerable).items():
        reply = result.replies[key]
        score = result.scores.get(key)
        rows.append(
            (
                key,
                question,
                "rag" if reply.answered else "no_answer",
                f"{reply.confidence:.4f}",
                next(iter(reply.ranking), "–"),
                f"{score[PAIRED]:.3f}" if score else "–",
                _verdict(result, key),
                reply.reason,
            )
        )
    return _table(head, rows)


def _verdict(result: Measured, key: str) -> Cell:
    reply = result.replies[key]
    if key in result.dataset.unanswerable:
        return Cell("wrong answer", True) if reply.answered else Cell("right refusal")
    relevant = result.dataset.qrels[key]
    place = next((n for n, each in enumerate(reply.ranking, start=1) if each in relevant), None)
    found = f"found at {place}" if place else "not found"
    if not reply.answered:
        return Cell(f"wrong refusal, {found}", True)
    return Cell(found, place != 1)


def _missed(result: Measured, key: str, explained: ExplainResponse) -> str:
    asked = (result.dataset.answerable | result.dataset.unanswerable)[key]
    relevant = sorted(result.dataset.qrels.get(key, {}))
    expected = f"relevant: {', '.join(relevant)}" if relevant else "nothing here answers it"
    return _miss(key, asked, f"{_verdict(result, key).text}; {expected}", explained)


# Parts of a page -----------------------------------------------------------------------------------


def _write(folder: Path, title: str, sections: Iterable[str]) -> Path:
    path = folder / NAME
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html_text(title)}</h1>\n"
        f'<p class="soft">pyrag {html_text(__version__)}, {made}</p>\n{"".join(sections)}</main>\n'
        "</body>\n</html>\n"
    )
    try:
        path.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidRequest(f"--report {path} cannot be written: {error.strerror or error}") from None
    return path


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{html_text(title)}</h2>\n{body}\n</section>\n"


def _facts(facts: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    rows = "".join(
        f'<tr><th scope="row">{html_text(name)}</th><td{_lang(value)}>{html_text(value)}</td></tr>\n'
        for name, value in facts
    )
    return f'<table class="{kind}"><tbody>\n{rows}</tbody></table>'


def _table(head: Row, rows: Iterable[Row], kind: str = "rows", caption: str = "") -> str:
    names = [each.text if isinstance(each, Cell) else each for each in head]
    titles = "".join(f'<th scope="col">{html_text(name)}</th>' for name in names)
    body = "".join(
        f"<tr>{''.join(_cell(name, cell) for name, cell in zip(names, row, strict=True))}</tr>\n"
        for row in rows
    )
    above = f"<caption>{html_text(caption)}</caption>" if caption else ""
    return f'<table class="{kind}">{above}<thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody></table>'


def _cell(name: str, cell: str | Cell) -> str:
    text = cell.text if isinstance(cell, Cell) else cell
    classes = ["wrong"] if isinstance(cell, Cell) and cell.wrong else []
    if len(text) <= _SHORT:
        classes.append("short")
    kind = f' class="{" ".join(classes)}"' if classes else ""
    return f'<td data-label="{html_text(name)}"{kind}{_lang(text)}>{html_text(text)}</td>'


def _miss(key: str, question: str, verdict: str, explained: ExplainResponse | None) -> str:
    """A question that came out wrong, with what `rag explain` says of it."""
    title = f"<span{_lang(question)}>{html_text(question)}</span>"
    head = f'<h3><span class="soft">{html_text(key)}</span> {title}</h3>'
    parts = [f'<article>\n{head}\n<p class="wrong"{_lang(verdict)}>{html_text(verdict)}</p>']
    if explained is not None:
        parts.append(f"<p>{html_text(explained.summary)}</p>")
        names = ("place", "outcome", "source", "heading", "similarity", "coverage", "words", "why")
        rows = [
            (
                "–" if each.place is None else str(each.place),
                each.outcome if each.number is None else f"{each.outcome} [{each.number}]",
                each.source,
                each.heading or "–",
                f"{each.score:.3f}",
                "–" if each.coverage is None else f"{each.coverage:.3f}",
                ", ".join(each.matched_terms or []) or "–",
                each.reason,
            )
            for each in explained.candidates[:_CANDIDATES]
        ]
        more = len(explained.candidates) - len(rows)
        caption = f"Candidates; {more} more are not shown" if more > 0 else "Candidates"
        parts.append(_table(names, rows, caption=caption) if rows else "<p>No candidates.</p>")
    return "\n".join(parts) + "\n</article>\n"


def _lang(text: str) -> str:
    """The attribute lang for a text in Chinese, Japanese or Korean; others have the page's."""
    for name, characters in (("ko", "[\uac00-\ud7af]"), ("ja", "[\u3040-\u30ff]"), ("zh", "[\u3400-\u9fff]")):
        if re.search(characters, text):
            return f' lang="{name}"'
    return ""
