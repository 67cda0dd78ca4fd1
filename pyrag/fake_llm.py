"""The model that needs none: it quotes the sentences of the sources that fit the question best."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pyrag.lexical import is_cjk, lexical_features
from pyrag.models import Context, Finish, Prompt

_MOST_QUOTES = 4
_MOST_OF_A_GROUP = 12  # list items, table rows or code lines that one quote brings along
# Letters and digits of a verbatim quote at least, CJK ones counted twice. A little more than
# rag.shortest_quote(), since this weighs less exactly; the model knows no database to ask for it.
_LONG = 10
_ENOUGH = 0.5  # a quote must fit at least this share of what the best one does
_SENTENCE_END = re.compile(r"(?<=[。！？；])|(?<=[.!?])\s+")
_MARKER = re.compile(r"^\s*(?:>\s*)*(?:[-*+]\s+(?:\[[ xX]\]\s+)?|\d+[.)]\s+)?")
_CALLOUT = re.compile(r"^\s*(?:>\s*)+\[!\w+\][-+]?\s*")
_LIST_ITEM = re.compile(r"\s*(?:>\s*)*(?:[-*+]|\d+[.)])\s+\S")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+")
_FENCE = re.compile(r"^\s*(?:>\s*)*(?:```|~~~)")
# Code span, wikilink or link, whichever comes first. No part runs over a bracket: that keeps it linear.
_CODE_OR_LINK = re.compile(
    r"(`[^`]+`)"
    r"|!?\[\[(?:[^\[\]|]*\|)?([^\[\]|]+)\]\]"
    r"|!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()]*(?:\([^()]*\)[^()]*)*\)"
)
_EMPHASIS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)")


@dataclass(frozen=True, slots=True)
class _Quote:
    """A sentence, list item, table row or code line, with the features that it is chosen by.

    `group` numbers the list, table or fence that it belongs to, 0 for running text.
    """

    number: int
    group: int
    text: str
    raw: str  # as it stands in the source
    features: frozenset[str]
    heading_features: frozenset[str]
    weight: float


class FakeLlm:
    """Answers without a model: quotes of the context, each with its [n]; deterministic."""

    def reply(self, prompt: Prompt, *, stream: bool) -> Iterator[str | Finish | None]:
        """Quotes of the context, or that it knows nothing by itself; in one piece or word by word."""
        if prompt.context is None:
            answer = _general_answer(prompt.question)
        else:
            answer = _quoting_answer(prompt.question, prompt.context, prompt.quotes)
        if stream:
            yield from re.findall(r"\s*\S+|\s+", answer)
        elif answer:
            yield answer
        yield Finish()


def _general_answer(question: str) -> str:
    if is_cjk(question):
        return "内置的 fake 模型没有通用知识；请设置 LLM_PROVIDER=openai-compatible。"
    return "The built-in fake model has no general knowledge; set LLM_PROVIDER=openai-compatible."


def _quoting_answer(question: str, context: Context, verbatim: bool = False) -> str:
    """The sentences that share most with the question, rare words counting more, in reading order.

    `verbatim` adds the part of quotes that the strict mode checks.
    """
    wanted = frozenset(lexical_features(question))
    quotes = list(_quotes(context)) or list(_titles(context))
    if not quotes:
        return ""
    spread = Counter(feature for quote in quotes for feature in quote.features)
    worth = {
        feature: math.log(1 + len(quotes) / (1 + spread[feature])) * (0.3 if _lone(feature) else 1.0)
        for feature in wanted
    }

    def fit(quote: _Quote) -> float:
        # fsum: a set has another order in each process, and a rounded sum would follow it
        own = math.fsum(worth[feature] for feature in wanted & quote.features)
        heading = math.fsum(worth[feature] for feature in (wanted & quote.heading_features) - quote.features)
        return (own + 0.3 * heading) * quote.weight

    fits = [fit(quote) for quote in quotes]
    best = max(fits)
    order = sorted(range(len(quotes)), key=lambda index: (-fits[index], index))
    chosen = {index for index in order[:_MOST_QUOTES] if fits[index] >= _ENOUGH * best}
    for index in sorted(chosen):
        chosen.update(_continued(quotes, index))
    lead = "根据知识库：" if is_cjk(question) else "From the knowledge base:"
    used = [quotes[index] for index in sorted(chosen)]
    lines = [lead, "", *(f"- {quote.text} [{quote.number}]" for quote in used)]
    return "\n".join([*lines, "", "QUOTES", *_verbatim(used, context)] if verbatim else lines)


def _verbatim(used: list[_Quote], context: Context) -> Iterator[str]:
    """A line for each quote that is long enough; for a source without one, its first lines that are."""
    for block in context.blocks:
        own = [quote.raw for quote in used if quote.number == block.number]
        long = [raw for raw in dict.fromkeys(own) if sum(map(_weight, raw)) >= _LONG]
        if own and not long:
            lines = block.content.removesuffix("[truncated]").split("\n")
            start = next((at for at, line in enumerate(lines) if own[0] in line), 0)
            taken = ""
            for line in [*lines[start:], *reversed(lines[:start])]:
                if sum(map(_weight, taken)) >= _LONG:
                    break
                taken = f"{taken} {line}" if line in lines[start:] else f"{line} {taken}"
            long = [taken.strip()]
        yield from (f'[{block.number}] "{raw}"' for raw in long)


def _weight(char: str) -> int:
    return (1 if char.isascii() else 2) if char.isalnum() else 0


def _lone(feature: str) -> bool:
    return len(feature) == 1 and not feature.isascii()


def _quotes(context: Context) -> Iterator[_Quote]:
    for block in context.blocks:
        content = block.content.removesuffix("[truncated]").rstrip()
        headings = frozenset(lexical_features(" ".join(block.hit.heading_path)))
        seen: set[str] = set()
        for group, text, raw in _sentences(content):
            if text not in seen:
                seen.add(text)
                features = frozenset(lexical_features(text))
                yield _Quote(block.number, group, text, raw, features, headings, block.hit.score)


def _titles(context: Context) -> Iterator[_Quote]:
    """For blocks that hold nothing to quote, such as a lone heading: what they are called."""
    for block in context.blocks:
        title = block.hit.heading or block.hit.source
        features = frozenset(lexical_features(title))
        yield _Quote(block.number, 0, title, "", features, frozenset(), block.hit.score)


def _continued(quotes: list[_Quote], index: int) -> list[int]:
    """The rest of what a quote only opens: its own fence, the code below it, or the list after a colon."""
    quote, group = quotes[index], 0
    after = quotes[index + 1] if index + 1 < len(quotes) else quote
    if quote.text.startswith("`"):
        group = quote.group
    elif after.number == quote.number and (after.text.startswith("`") or quote.text.endswith((":", "："))):
        group = after.group
    if not group:
        return []
    same = [at for at, each in enumerate(quotes) if (each.number, each.group) == (quote.number, group)]
    return same[:_MOST_OF_A_GROUP]


def _sentences(content: str) -> Iterator[tuple[int, str, str]]:
    """Sentences, list items, table rows with their column names, code lines; without Markdown marks.

    Each comes with the number of the list, table or fence that it is in, 0 for running text, and last as it
    stands in the source.
    """
    lines = content.split("\n")
    group = 1
    in_fence = False
    header: list[str] | None = None
    for position, line in enumerate(lines):
        if _FENCE.match(line):
            in_fence = not in_fence
            group += 1
            continue
        if in_fence:
            if line.strip():
                yield group, f"`{line.strip()}`", line.strip()
            continue
        if "|" in line and position + 1 < len(lines) and _is_delimiter_row(lines[position + 1]):
            header = _cells(line)
            group += 1
            continue
        if header is not None and "|" in line:
            if not _is_delimiter_row(line):
                cells = zip(header, _cells(line), strict=False)
                named = "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells if cell)
                yield group, named, line.strip()
            continue
        header = None
        if _HEADING.match(line):
            continue
        plain = _plain(_MARKER.sub("", _CALLOUT.sub("", line)))
        if plain and _LIST_ITEM.match(line):
            yield group, plain, line.strip()
            continue
        group += bool(plain)  # a paragraph ends a list
        for part in _SENTENCE_END.split(plain):
            if part and part.strip(" -=*_"):
                yield 0, part.strip(), part.strip()


def _is_delimiter_row(line: str) -> bool:
    return "-" in line and not line.strip(" \t\r|:-")


def _cells(row: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", _plain(row.strip().removeprefix("|").removesuffix("|")))
    return [part.strip().replace("\\|", "|") for part in parts]


def _plain(text: str) -> str:
    """A line without links, emphasis and backticks; what stands in a code span is not touched."""

    def shown(match: re.Match[str]) -> str:
        return match[1] or match[2] or match[3] or ""

    # twice, for an image inside a link
    parts = _CODE_OR_LINK.sub(shown, _CODE_OR_LINK.sub(shown, text)).split("`")
    last = len(parts) - 1
    return "".join(
        part if index % 2 and index < last else _EMPHASIS.sub("", part) for index, part in enumerate(parts)
    ).strip()
