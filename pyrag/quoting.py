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
_LONGEST = 5000  # characters of a quote that are looked at; rag.verify_quotes finds none of that length

# --- taking them out of the reply

_WORD = r"(?:(?:supporting[ ])?(?:quotes?|quotations?)(?:[ ]used)?|引文|引用|原文|原文引用|引文核对)"
_HEADING = re.compile(rf"[\s>#*_`=\-]*{_WORD}[\s*_`]*[:：]?[\s*_`=\-]*", re.IGNORECASE)
# A heading only above whole quotes: a list of sources is none
_SOURCES = re.compile(r"[\s>#*_`=\-]*(?:sources?|来源|资料来源)[\s*_`]*[:：]?[\s*_`=\-]*", re.IGNORECASE)
_THOUGHT = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>\s*", re.DOTALL | re.IGNORECASE)
_RULE = re.compile(r"[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*")
_FENCE = re.compile(r"[ \t>]*(?:`{3,}|~{3,})[ \t]*\w*[ \t]*")
_OPEN = '"“”„«「『＂'
_CLOSE = {'"': '"”“＂', "“": '”"', "”": '”"', "„": '“”"', "«": "»", "「": "」", "『": "』", "＂": '＂"'}
_ENDS = '"“”»」』＂'
_BULLET = r"[ \t>]{0,20}(?:(?:[-*+•·–]|\d{1,3}[.)](?=[ \t]*[\[［【]))[ \t]*)?(?:\*\*|__)?"
_NAME = r"(?:(?:sources?|来源|來源|资料|資料)[ ]?[#:：]?[ ]?|\^)?"
_ITEM = rf"{_NAME}\d{{1,9}}(?:[ ]?[-‐‑–—~～至][ ]?\d{{1,9}})?"
_NUMBERS = rf"{_ITEM}(?:[ ]?[,，、;][ ]?{_ITEM}){{0,20}}"
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
_SOURCE_MARK = re.compile(r"[\[［【]\d")
_SPAN = re.compile(r"(\d+)(?:[ ]?[-‐‑–—~～至][ ]?(\d+))?")


def split_quotes(reply: str) -> tuple[str, list[tuple[int, str]]]:
    """The answer of a reply without its parts of quotes, and these with the number of their source.

    A part is what the rules ask for: a line QUOTES and then lines `[1] "…"`. Other spellings are found too:
    引文, other marks of quotes and numbers, bullets, in a fence, without a line break before it, without its
    heading at the end of the reply. It may stand anywhere and more than once; what is around it is the
    answer, but for the thought that a reply begins with. Quotes are text that a database can hold; an empty
    one stays.
    """
    reply = reply.replace("\0", " ").encode("utf-8", "replace").decode()
    if thought := _THOUGHT.match(reply):
        reply = reply[thought.end() :]
    lines = re.split(r"\r\n|\r|\n", reply)
    following = _following(lines)
    answer: list[str] = []
    parts: list[list[str]] = []
    kept: list[str] = []  # lines of the answer since the last part
    at = 0
    while at < len(lines):
        place = _opening(lines, at, following)
        if place is None:
            kept.append(lines[at])
            at += 1
            continue
        start, rest = place
        before, fenced = _ended([*kept, lines[at][:start]])
        answer.append(before)
        part = [lines[at][rest:]] if rest < len(lines[at]) else []
        end = _end_of_part(lines, at + 1, part, following, fenced)
        parts.append([*part, *lines[at + 1 : end]])
        kept = []
        at = end
    if parts:
        before, below = _without_heading(kept)
        answer.append(before.strip("\n"))
        quotes = [each for part in [*parts, below] for each in _entries(part)]
        return "\n\n".join(part for part in answer if part.strip()), quotes[:MOST_QUOTES]
    whole, below = _without_heading(lines)
    return (whole, _entries(below)) if whole.strip() else ("\n".join(lines), [])


def _following(lines: Sequence[str]) -> list[int]:
    """For each line the number of the next one that is neither blank nor a fence; beyond the last: none."""
    found = [len(lines)] * (len(lines) + 1)
    for at in range(len(lines) - 1, -1, -1):
        text = bool(lines[at].strip()) and not _FENCE.fullmatch(lines[at])
        found[at] = at if text else found[at + 1]
    return found


def _opening(lines: Sequence[str], at: int, following: Sequence[int]) -> tuple[int, int] | None:
    """Where a part begins in a line, and where its first quote may: None if no part begins here."""
    line = lines[at]
    after = following[at + 1]
    next_line = lines[after] if after < len(lines) else None
    if len(line) < 80 and _HEADING.fullmatch(line):
        opens = next_line is None or _is_entry(next_line) or _introduces(lines, after, following)
        return (0, len(line)) if opens else None
    if len(line) < 80 and _SOURCES.fullmatch(line):
        return (0, len(line)) if next_line is not None and _is_whole_entry(next_line) else None
    found = _INLINE.search(line)
    if found:
        return found.start(), found.end()
    start = re.match(rf"[\s>#*_]*{_WORD}[*_]*[ \t]*[:：][*_]*[ \t]*", line, re.IGNORECASE)
    return (0, start.end()) if start and _ENTRY.match(line, start.end()) else None


def _end_of_part(
    lines: Sequence[str], at: int, part: Sequence[str], following: Sequence[int], fenced: bool
) -> int:
    """The first line below a part: what is no quote, nor the rest of one that is open."""
    first = following[at]
    if not part and first < len(lines) and not _is_entry(lines[first]):
        at = first + 1
    found = _read(part)
    last = found[-1][1] if found else None
    while at < len(lines):
        line = lines[at]
        is_open = last is not None and _is_open(last)
        if not line.strip():
            # an open quote ends with its paragraph, unless it has not begun
            last = None if is_open and last else last
        elif _FENCE.fullmatch(line):
            after = following[at]
            entry = after < len(lines) and _is_entry(lines[after])
            if not (fenced or entry or after == len(lines) or (last == "")):
                break
            fenced = not fenced
        elif _opening(lines, at, following) is not None:
            break
        elif _is_entry(line):
            found = _read([line])
            last = found[-1][1] if found else last
        elif is_open and last is not None and len(last) < _LONGEST_OPEN:
            # only its first and last characters say whether it is closed
            last = f"{last[:1]}{last[-300:] if len(last) > 1 else ''}\n{line}" if last else line.strip()
        else:
            break
        at += 1
    return at


def _introduces(lines: Sequence[str], at: int, following: Sequence[int]) -> bool:
    """Whether a line below a heading leads to a quote, such as "Here they are:"."""
    after = following[at + 1]
    line = lines[at]
    short = len(line) < 80 and not _SOURCE_MARK.search(line) and not _HEADING.fullmatch(line)
    return short and after < len(lines) and _is_whole_entry(lines[after])


def _is_entry(line: str) -> bool:
    return bool(_ENTRY.fullmatch(line) or _TURNED.fullmatch(line))


def _ended(lines: list[str]) -> tuple[str, bool]:
    """The answer above a part, and whether a fence is open there: with the rule above it that goes."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or _RULE.fullmatch(lines[end - 1])):
        end -= 1
    lines = lines[:end]
    open_fence = sum(bool(_FENCE.fullmatch(line)) for line in lines) % 2 == 1
    if open_fence:
        if _FENCE.fullmatch(lines[-1]):
            return _ended(lines[:-1])[0], True
        if _FENCE.fullmatch(lines[0]):  # around the whole reply
            lines = lines[1:]
    while lines and not lines[0].strip():
        lines = lines[1:]
    return "\n".join(lines).rstrip(), open_fence


def _without_heading(lines: list[str]) -> tuple[str, list[str]]:
    """A text that ends in lines of quotes, without them, and these lines."""
    start = len(lines)
    while start and (not lines[start - 1].strip() or _is_whole_entry(lines[start - 1])):
        start -= 1
    if not any(line.strip() for line in lines[start:]):
        return "\n".join(lines), []
    return _ended(lines[:start])[0], lines[start:]


def _is_whole_entry(line: str) -> bool:
    """Whether a line is a number and a quote between marks, and nothing else."""
    found = _ENTRY.fullmatch(line.rstrip())
    text = found["quote"] if found else ""
    return len(text) > 1 and text[0] in _OPEN and text[-1] in _ENDS and bool(found and found["marks"])


def _entries(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The quotes of the lines below a heading, each once for each of its numbers."""
    quotes = [
        (number, quote[:_LONGEST])
        for numbers, text in _read(lines)
        for quote in _parts(text)
        for number in numbers
    ]
    return quotes[:MOST_QUOTES]


def _read(lines: Sequence[str]) -> list[tuple[list[int], str]]:
    """What stands behind numbers, with its marks; a quote goes on until its mark is closed."""
    found: list[tuple[list[int], str]] = []
    for line in lines:
        if _FENCE.fullmatch(line):
            continue
        for part in _NEXT_ON_LINE.split(line):
            open_quote = bool(found) and _is_open(found[-1][1])
            turned = None if open_quote else _TURNED.fullmatch(part)
            entry = turned or _ENTRY.fullmatch(part)
            if entry and (not open_quote or (entry["quote"][:1] or " ") in _OPEN):
                found.append((_numbers(entry["marks"] or entry["bare"]), entry["quote"].strip()))
            elif open_quote and len(found[-1][1]) < _LONGEST_OPEN:
                numbers, text = found[-1]
                found[-1] = (numbers, f"{text}\n{part}".strip())
        if len(found) > MOST_QUOTES:
            break
    return found


def _numbers(marks: str) -> list[int]:
    """The numbers of marks such as [1], [1, 2] and [1-3], each once."""
    numbers: list[int] = []
    for first, last in _SPAN.findall(marks):
        low, high = sorted((int(first), int(last or first)))
        numbers += range(low, min(high + 1, low + _MOST_OF_A_LINE))
    return list(dict.fromkeys(numbers))[:_MOST_OF_A_LINE]


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
