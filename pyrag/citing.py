"""Citation marks in a model's answer: which sources it cites, and marks of sources that do not exist."""

from __future__ import annotations

import re

_SCAN = re.compile(
    r"(?P<ticks>`+)"
    r"|(?P<gap>\n[ \t]*\n)"
    r"|(?<![ \t])(?P<space>[ \t]*)(?P<open>[\[【])"  # from where the white space begins: linear in its length
    r"(?P<numbers>[ ]{0,2}\d{1,4}[ ]{0,2}(?:[,，、][ ]{0,2}\d{1,4}[ ]{0,2}){0,40})(?P<close>[\]】])"
)
_LONGEST_MARK = 400  # characters, a little above what the numbers of a mark can have
_UNFINISHED_MARK = re.compile(r"[ \t]*[\[【][\d ,，、]*\Z")
_REFUSAL = re.compile(
    r"(?:do(?:es)? not|don't|doesn't|did not|didn't) (?:\w+ ){0,2}?"
    r"(?:contain|include|mention|state|say|provide|cover|specify|answer)"
    r"|(?:is|are) not (?:\w+ )?"
    r"(?:contained|mentioned|stated|provided|covered|specified|answered|found|given|in the)"
    r"|no (?:information|answer|mention|source)|not enough information|insufficient information"
    r"|(?:cannot|can't|can not|could not|unable to) (?:be )?(?:answer|find|determine)"
    r"|(?:没有|未|并未|不)(?:\w{0,4})(?:包含|提到|提及|说明|给出|提供|涉及|记载)|没有[^。]{0,20}(?:答案|信息|资料|内容)"
    r"|(?:无法|不能|难以)(?:\w{0,6})(?:回答|确定|找到|得出|判断)|(?:信息|资料)不足",
    re.IGNORECASE,
)
# Who declines: a cited sentence about anything else ("plan A does not include exports [1]") is an answer
_DECLINING = re.compile(
    r"\b(?:sources|the source|the context|knowledge base|I"
    r"|(?:provided|given|available) (?:documents?|information|texts?|passages|excerpts|notes))\b"
    r"|(?:^|[，,：:\s]|根据|基于|提供的|给出的|所给的?|现有的?|这些|以上|上述|参考|在)(?:资料|文档|信息|内容)"
    r"|来源|知识库|上下文|我(?!们|司|方)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?:[。！？]|[.!?](?=[\s\[【]|\Z))(?:[ ]?[\[【][\d ,，、]{1,20}[\]】])*|\n")


class CitationFilter:
    """Takes an answer in pieces and gives it on without marks `[n]` of sources that were not given.

    `[1]`, `[1, 3]` and `【1】` are marks, but not inside code. What is held back is at most an unfinished
    mark; concatenated, all outputs are the answer. `cited` has the numbers that stand in it, `removed` counts
    those that were taken out.
    """

    def __init__(self, sources: int) -> None:
        self.cited: set[int] = set()
        self.removed = 0
        self._sources = sources
        self._held = ""
        self._code = 0  # length of the run of backticks that opened the code around this place

    def feed(self, piece: str) -> str:
        """The part of the answer that is certain after this piece; it may be empty."""
        text = self._held + piece
        cut = _certain(text)
        self._held = text[cut:]
        return _SCAN.sub(self._replace, text[:cut])

    def finish(self) -> str:
        """The rest of the answer."""
        text, self._held = self._held, ""
        return _SCAN.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        if ticks := found["ticks"]:
            if not self._code:
                self._code = len(ticks)
            elif len(ticks) == self._code or len(ticks) > self._code >= 3:
                self._code = 0
        elif found["gap"]:
            if self._code < 3:  # a code span ends with its paragraph, a fence does not
                self._code = 0
        elif not self._code:
            return self._checked(found)
        return found[0]

    def _checked(self, mark: re.Match[str]) -> str:
        numbers = [int(number) for number in re.findall(r"\d+", mark["numbers"])]
        real = [number for number in numbers if 1 <= number <= self._sources]
        self.cited.update(real)
        self.removed += len(numbers) - len(real)
        if len(real) == len(numbers):
            return mark[0]
        inner = ", ".join(map(str, real))
        return f"{mark['space']}{mark['open']}{inner}{mark['close']}" if real else ""


def _certain(text: str) -> int:
    """Where in a text that goes on may begin what the rest decides: a mark, a run of backticks, a gap."""
    opened = max(text.rfind("[", -_LONGEST_MARK), text.rfind("【", -_LONGEST_MARK))
    if opened >= 0:
        start = len(text[:opened].rstrip(" \t"))
        if _UNFINISHED_MARK.match(text, start):
            return start
    return len(text.rstrip(" \t\n" if text[-1:] in (" ", "\t", "\n") else "`"))


def why_not_grounded(answer: str, cited: set[int]) -> str | None:
    """Why an answer does not rest on the sources, or None when it does: it cites and does not decline.

    That a model declines is read from its first sentence, in English or Chinese; the prompt asks for that.
    A citation in what only sounds so makes it an answer: "the basic plan does not include exports [1]".
    """
    end = _SENTENCE_END.search(answer.lstrip())
    first = answer.lstrip()[: end.end()] if end else answer
    if _REFUSAL.search(first) and (not cited or _DECLINING.search(first)):
        return "the model says that the sources do not hold the answer"
    return None if cited else "the answer cites no source"
