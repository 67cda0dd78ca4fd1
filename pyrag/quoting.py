"""Quotes of a model's reply: taking them out of it, and what is left of the answer once they are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyrag.citing import CitationFilter, says_nothing, why_not_grounded
from pyrag.models import Context, QuoteVerdict
from pyrag.prompts import not_in_sources_text, unverified_text
from pyrag.schemas import CitationEvent, FailedQuote, Quote

Verify = Callable[[Sequence[tuple[int, str]], Sequence[str]], list[QuoteVerdict]]

MOST_QUOTES = 100  # of one reply; the others are not looked at
_MOST_OF_A_LINE = 100  # numbers before one quote
_LONGEST_SHOWN = 1000  # characters of a quote in a reply
_LONGEST_OPEN = 20_000  # characters of a quote over several lines

# --- taking them out of the reply

_WORD = r"(?:quotes?|quotations?|supporting[ ]quotes?|引文|引用|原文|原文引用|引文核对)"
_HEADING = re.compile(rf"[\s>#*_`=\-]*{_WORD}[\s*_`]*[:：]?[\s*_`=\-]*", re.IGNORECASE)
_FENCE = re.compile(r"[ \t>]*(?:`{3,}|~{3,})[ \t]*\w*[ \t]*")
_OPEN = '"“”„«「『＂'
_CLOSE = {'"': '"”“＂', "“": '”"', "”": '”"', "„": '“”"', "«": "»", "「": "」", "『": "』", "＂": '＂"'}
_ENDS = '"“”»」』＂'
_BULLET = r"[ \t>]{0,20}(?:(?:[-*+•·–]|\d{1,3}[.)](?=[ \t]*[\[［【]))[ \t]*)?(?:\*\*|__)?"
_NAME = r"(?:(?:sources?|来源|來源|资料|資料)[ ]?[#:：]?[ ]?|\^)?"
_NUMBERS = rf"{_NAME}\d{{1,9}}(?:[ ]?[,，、;][ ]?{_NAME}\d{{1,9}}){{0,20}}"
_MARKS = rf"(?:[\[［【(（][ ]?{_NUMBERS}[ ]?[\]］】)）][ \t]{{0,3}}){{1,20}}"
_SEPARATOR = r"(?:\*\*|__)?[ \t]*[:：.、,，)—–=>-]{0,2}[ \t]*(?:\*\*|__)?[ \t]*"
# [1] "…"   - [1]: …   (1) …   [1][2] "…"   1. "…"   Source 1: "…"
_ENTRY = re.compile(
    rf"{_BULLET}(?:(?P<marks>{_MARKS}){_SEPARATOR}"
    rf"|(?P<bare>{_NAME}\d{{1,9}})[ \t]{{0,3}}{_SEPARATOR}(?=[{_OPEN}]))(?P<quote>.*)",
    re.IGNORECASE | re.DOTALL,
)
# "…" [1]
_TURNED = re.compile(
    rf"{_BULLET}(?P<quote>[{_OPEN}].*[{_ENDS}])[ \t]*[—–-]{{0,2}}[ \t]*(?P<marks>{_MARKS})[ \t.]*"
)
_TRAILING_MARKS = re.compile(rf"(?<=[{_ENDS}])[ \t,.;]*{_MARKS}[ \t.]*\Z", re.IGNORECASE)
# … [1]. QUOTES [1] "…"
_INLINE = re.compile(
    rf"(?:\*\*|__)?(?:QUOTES?|引文)(?:\*\*|__)?[ \t]*[:：]?(?:\*\*|__)?\s*(?={_MARKS}{_SEPARATOR}[{_OPEN}])"
)
_BETWEEN = re.compile(rf"(?<=[{_ENDS}])[ \t]*(?:[,，;；、/|+][ \t]*)?(?:and|和|以及)?[ \t]*(?=[{_OPEN}])")
_NEXT_ON_LINE = re.compile(rf"(?<=[{_ENDS}])[ \t,;，；]*(?={_MARKS}{_SEPARATOR}[{_OPEN}])", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def split_quotes(reply: str) -> tuple[str, list[tuple[int, str]]]:
    """The answer of a reply without its part of quotes, and these with the number of their source.

    The part is what the rules ask for: a line QUOTES and then lines `[1] "…"`. Other spellings are found too:
    引文, other marks of quotes and numbers, bullets, in a fence, without a line break before it, without its
    heading at the end of the reply. Quotes are text that a database can hold; an empty one stays.
    """
    lines = re.split(r"\r\n|\r|\n", reply.replace("\0", " ").encode("utf-8", "replace").decode())
    for at in range(len(lines) - 1, -1, -1):
        if _is_heading(lines[at]):
            quotes = _entries(lines[at + 1 :])
            if quotes or not any(line.strip() and not _FENCE.fullmatch(line) for line in lines[at + 1 :]):
                return _ended(lines[:at]), quotes
        elif place := _inline(lines[at]):
            quotes = _entries([lines[at][place[1] :], *lines[at + 1 :]])
            if quotes:
                return _ended([*lines[:at], lines[at][: place[0]]]), quotes
    return _without_heading(lines)


def _is_heading(line: str) -> bool:
    return len(line) < 80 and bool(_HEADING.fullmatch(line))


def _inline(line: str) -> tuple[int, int] | None:
    """Where a heading stands in a line before its first quote: its start, and that of the quote."""
    found = list(_INLINE.finditer(line))
    if found:
        return found[-1].start(), found[-1].end()
    start = re.match(rf"[\s>#*_]*{_WORD}[*_]*[ \t]*[:：][*_]*[ \t]*", line, re.IGNORECASE)
    return (0, start.end()) if start and _ENTRY.match(line, start.end()) else None


def _ended(lines: list[str]) -> str:
    """The answer above the part: a fence or rule that opened the part goes with it."""
    while lines and (not lines[-1].strip() or re.fullmatch(r"[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*", lines[-1])):
        lines = lines[:-1]
    if sum(bool(_FENCE.fullmatch(line)) for line in lines) % 2:
        if _FENCE.fullmatch(lines[-1]):
            return _ended(lines[:-1])
        if _FENCE.fullmatch(lines[0]):  # around the whole reply
            lines = lines[1:]
    return "\n".join(lines).rstrip()


def _without_heading(lines: list[str]) -> tuple[str, list[tuple[int, str]]]:
    """A reply that ends in lines of quotes, with some answer before them."""
    start = len(lines)
    while start and (not lines[start - 1].strip() or _is_whole_entry(lines[start - 1])):
        start -= 1
    quotes = _entries(lines[start:])
    answer = _ended(lines[:start])
    return (answer, quotes) if quotes and answer else ("\n".join(lines), [])


def _is_whole_entry(line: str) -> bool:
    """Whether a line is a number and a quote between marks, and nothing else."""
    found = _ENTRY.fullmatch(line.rstrip())
    text = found["quote"] if found else ""
    return len(text) > 1 and text[0] in _OPEN and text[-1] in _ENDS and bool(found and found["marks"])


def _entries(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The quotes of the lines below the heading; a quote goes on until its mark is closed."""
    found: list[tuple[list[int], str]] = []
    for line in lines:
        if _FENCE.fullmatch(line):
            continue
        for part in _NEXT_ON_LINE.split(line):
            open_quote = bool(found) and _is_open(found[-1][1])
            turned = None if open_quote else _TURNED.fullmatch(part)
            entry = turned or _ENTRY.fullmatch(part)
            if entry and (not open_quote or (entry["quote"][:1] or " ") in _OPEN):
                marks = entry["marks"] or entry["bare"]
                numbers = list(dict.fromkeys(map(int, _NUMBER.findall(marks))))[:_MOST_OF_A_LINE]
                found.append((numbers, entry["quote"].strip()))
            elif open_quote and len(found[-1][1]) < _LONGEST_OPEN:
                numbers, text = found[-1]
                found[-1] = (numbers, f"{text}\n{part}".strip())
        if len(found) > MOST_QUOTES:
            break
    quotes = [(number, quote) for numbers, text in found for quote in _parts(text) for number in numbers]
    return quotes[:MOST_QUOTES]


def _is_open(text: str) -> bool:
    """Whether a quote goes on in the next line: it has not begun, or has no closing mark at its end."""
    if not text:
        return True
    closing = _CLOSE.get(text[0])
    if closing is None:
        return False
    end = _TRAILING_MARKS.sub("", text[-300:]).rstrip(" \t.,;。；，")
    return len(text) < 2 or end[-1:] not in closing


def _parts(text: str) -> list[str]:
    """The quotes behind one number: several between marks, or one; without the marks."""
    text = _TRAILING_MARKS.sub("", text)
    parts = _BETWEEN.split(text) if text[:1] in _OPEN else [text]
    bare = [_bare(part) for part in parts]
    # "a", "b" may also be words of the source
    return bare if len(bare) > 1 and all(len(part) >= 8 for part in bare) else [_bare(text)]


def _bare(text: str) -> str:
    text = text.strip()
    if text[:1] in _OPEN and text:
        text = text[1:]
        end = text.rstrip(" \t.,;。；，")
        text = end[:-1] if end and end[-1] in _ENDS else text
    return text.strip()


# --- what is left of the answer


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer after its quotes were checked.

    `text` is what may be shown: without the marks of sources that have no supported quote, or a refusal.
    `removed` and `unverified` count the citations that were taken out because there is no such source, and
    because no quote supports them. `refused` says that nothing of the answer may be shown.
    """

    text: str
    cited: frozenset[int]
    removed: int
    unverified: int
    verdicts: tuple[QuoteVerdict, ...]
    reason: str | None
    refused: bool


def judge(question: str, context: Context, reply: str, cut: str | None, verify: Verify) -> Judged | None:
    """What may be shown of a reply that was asked for quotes; None for one without an answer.

    `cut` says why the reply is not whole. At least one citation must have a quote that stands in its source.
    """
    answer, quotes = split_quotes(reply)
    count = len(context.blocks)
    marks = CitationFilter(count)
    answer = marks.feed(answer) + marks.finish()
    if says_nothing(answer):
        return None
    sources = [block.content.removesuffix("[truncated]") for block in context.blocks]
    verdicts = tuple(verify(quotes, sources)) if quotes else ()
    supported = {each.number for each in verdicts if each.verdict == "supported"}
    failed = _failures(verdicts, marks.cited)
    kept = CitationFilter(count, supported)
    text = kept.feed(answer) + kept.finish()
    if kept.cited:
        why = "; ".join(filter(None, (why_not_grounded(text, kept.cited), *failed))) or None
        return Judged(text, frozenset(kept.cited), marks.removed, kept.removed, verdicts, why, refused=False)
    declined = why_not_grounded(answer, {0})  # as if it cited: then only that it declines is a reason
    if declined:
        refusal, why = not_in_sources_text(question), declined
    else:
        refusal = unverified_text(question)
        why = f"no quote of the answer stands in its source: {_why_none(marks.cited, quotes, failed, cut)}"
    return Judged(refusal, frozenset(), marks.removed, kept.removed, verdicts, why, refused=True)


def _why_none(cited: set[int], quotes: Sequence[object], failed: Sequence[str], cut: str | None) -> str:
    if not quotes:
        return cut or "the reply has no quotes"
    return "; ".join(failed) if cited else "the answer cites no source"


def _failures(verdicts: Sequence[QuoteVerdict], cited: set[int]) -> list[str]:
    """What is wrong with the quotes of the cited sources, each thing once."""
    said = []
    for number in sorted(cited):
        own = [each for each in verdicts if each.number == number]
        said += [_failure(each) for each in own if each.verdict != "supported"] or (
            [] if own else [f"[{number}] has no quote"]
        )
    return list(dict.fromkeys(said))


def _failure(verdict: QuoteVerdict) -> str:
    quote = f"the quote for [{verdict.number}]"
    if verdict.verdict == "other_source":
        return f"{quote} stands in {''.join(f'[{number}]' for number in verdict.found_in)} instead"
    short = verdict.verdict == "too_short"
    return f"{quote} is too short to prove anything" if short else f"{quote} stands in no source"


# --- what the reply shows of it


def quoted_citations(context: Context, judged: Judged) -> list[CitationEvent]:
    """The sources of the answer with their quotes; none where it was refused."""
    if judged.refused:
        return []
    return [
        CitationEvent(
            source=block.hit.source,
            heading=block.hit.heading,
            score=block.hit.score,
            cited=block.number in judged.cited,
            quotes=[Quote(**_shown(each)) for each in judged.verdicts if each.number == block.number],
            number=block.number,
        )
        for block in context.blocks
    ]


def failed_quotes(judged: Judged) -> list[FailedQuote]:
    """The quotes that support nothing, in the order of the reply."""
    failed = [each for each in judged.verdicts if each.verdict != "supported"]
    return [FailedQuote(number=each.number, **_shown(each)) for each in failed]


def _shown(verdict: QuoteVerdict) -> dict[str, Any]:
    quote = verdict.quote
    if len(quote) > _LONGEST_SHOWN:
        quote = f"{quote[:_LONGEST_SHOWN]}…"
    return {"quote": quote, "verdict": verdict.verdict, "found_in": verdict.found_in}
