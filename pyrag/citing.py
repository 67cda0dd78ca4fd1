"""Citation marks in a model's answer: which sources it cites, and marks of sources that do not exist."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

# --- marks

_LABEL = r"(?:(?:sources?|来源|來源|资料|資料)(?:[ ]?[:：#])?[ ]?|\^)?"
_RANGE = r"[ ]?[-‐‑‒–—~～至][ ]?"
_ITEM = rf"{_LABEL}(?:(?!0)\d{{1,9}}{_RANGE}(?!0)\d{{1,9}}|\d{{1,9}})"  # [2024-01] and [0-9] are no ranges
_BETWEEN = r"[ ]{0,2}(?:[,，、;；](?:[ ]?(?:and|&))?|&|and|和|与|與|及)[ ]{0,2}"
# [1]  [1, 3]  [1; 3]  [1 & 3]  [1 and 3]  [1-3]  [Source 1]  [来源1]  [^1]  【1】  【1†source】  ［1］
_MARK = re.compile(
    rf"(?P<open>[\[［【])[ ]{{0,2}}(?P<numbers>{_ITEM}(?:{_BETWEEN}{_ITEM}){{0,40}}+)"
    r"(?P<tail>(?::\d{1,4})?(?:†[^\[\]［］【】\n]{0,40})?)[ ]{0,2}[\]］】]",
    re.IGNORECASE,
)
# What may still become a mark: at most the characters that one is made of
_OPEN_MARK = re.compile(
    r"[\[［【][\d \^,，、;；&:：#\-‐‑‒–—~～至和与與及来來源资資料sourceand]*(?:†[^\[\]［］【】\n]*)?\Z",
    re.IGNORECASE,
)
_SPAN = re.compile(rf"(\d+)(?:{_RANGE}(\d+))?")
_PLAIN = re.compile(r"[\d ,\-]+")
# The target of a Markdown link begins like this: a scheme, a path, an anchor, or a name with a dot
_TARGET = re.compile(r"\(<?(?:[A-Za-z][A-Za-z0-9+.-]{1,15}:[^\s()]|\.{0,2}/|#|[\w%-]{1,30}\.[A-Za-z])")
_OPEN_TARGET = re.compile(r"\([^\s()]{0,34}\Z")

_TOKEN = re.compile(r"\n|`+|[ \t]{0,8}[\[［【]")
_TICKS = re.compile(r"`+")
_TRAILING_SPACE = re.compile(r"[ \t]{1,8}\Z")
_LINE_PREFIX = re.compile(r"[ \t>]{0,20}")
_FENCE = re.compile(r"`{3,}|~{3,}")
_INDENT = re.compile(r"[ ]{0,3}\t|[ ]{4}")
_LIST_ITEM = re.compile(r"[ \t>]{0,20}(?:[-*+]|\d{1,9}[.)])[ \t\n]")
_OPEN_LIST_ITEM = re.compile(r"[ \t>]{0,20}(?:[-*+]|\d{1,9}[.)]?)\Z")

_LONGEST_MARK = 160  # characters: [1, 2, ... 40] is one
_LONGEST_CODE = 2000  # characters of a code span, and of a line that opens or closes a fence


_MOST_REMOVED = 100  # counted of one mark


class CitationFilter:
    """Takes an answer in pieces and gives it on without marks `[n]` of sources that were not given.

    Marks in code are none: between fences, in code spans that close on their line, in indented blocks
    outside of lists. Nor are Markdown links, wikilinks, and indexes like `arr[9]` of no source. What is held
    back is at most an unfinished mark or the rest of a line with an open code span; concatenated, all outputs
    are the answer, however it was cut. `cited` has the numbers that stand in it, `removed` counts those that
    were taken out. `allowed`: only these sources may be cited.
    """

    def __init__(self, sources: int, allowed: Collection[int] | None = None) -> None:
        self.cited: set[int] = set()
        self.removed = 0
        self._sources = sources
        self._allowed = range(1, sources + 1) if allowed is None else allowed
        self._held = ""
        self._last = "\n"  # the character before what is held
        self._at_line_start = True
        self._fence = ""  # the run that opened the fence around this place
        self._verbatim = False  # this line is code
        self._indented = False  # this line is in an indented block
        self._blank = True  # this line has been white space so far
        self._block_may_begin = True  # the line before was blank or in an indented block
        self._in_list = False

    def feed(self, piece: str) -> str:
        """The part of the answer that is certain after this piece; it may be empty."""
        return self._scan(self._held + piece, final=False)

    def finish(self) -> str:
        """The rest of the answer."""
        return self._scan(self._held, final=True)

    def _scan(self, text: str, final: bool) -> str:
        shown: list[str] = []
        at = 0
        while at < len(text):
            if self._at_line_start:
                if not self._begin_line(text, at, final):
                    break
                self._at_line_start = False
            if self._verbatim:
                end = text.find("\n", at)
                taken = self._pass(text, at, len(text) if end < 0 else end, shown)
                if end >= 0:
                    taken = self._end_line(end, shown)
            elif token := _TOKEN.search(text, at):
                self._pass(text, at, token.start(), shown)
                at = token.start()
                if token[0] == "\n":
                    taken = self._end_line(at, shown)
                elif token[0][0] == "`":
                    taken = self._code_span(text, at, token.end(), final, shown)
                else:
                    taken = self._mark(text, at, token.end() - 1, final, shown)
            else:
                space = None if final else _TRAILING_SPACE.search(text, max(at, len(text) - 8))
                taken = self._pass(text, at, space.start() if space else len(text), shown)
                at = taken
                if space:
                    break
            if taken == at:
                break
            at = taken
        self._held = text[at:]
        return "".join(shown)

    def _pass(self, text: str, start: int, end: int, shown: list[str]) -> int:
        """Gives on a stretch of one line."""
        if end > start:
            part = text[start:end]
            shown.append(part)
            self._last = part[-1]
            if self._blank and part.strip():
                self._blank = False
        return end

    def _end_line(self, at: int, shown: list[str]) -> int:
        shown.append("\n")
        self._last = "\n"
        self._block_may_begin = self._blank or self._indented
        self._blank = self._at_line_start = True
        return at + 1

    def _begin_line(self, text: str, at: int, final: bool) -> bool:
        """Decides whether a line is code; False when more of it is needed for that."""
        prefix = _LINE_PREFIX.match(text, at)
        assert prefix
        start = prefix.end()
        if not final and start == len(text) and start - at < 20:
            return False
        indent = _INDENT.match(text, at)
        self._indented = bool(
            indent and self._block_may_begin and not self._fence and not self._in_list
        )  # an indented line in a list belongs to its item
        self._verbatim = bool(self._fence) or self._indented
        if self._indented:
            return True
        if text[start : start + 1] in ("`", "~"):
            fence = self._fence_line(text, at, start, final)
            if fence is None:
                return False
            if fence:
                self._verbatim = True
                self._fence = "" if self._fence else fence
                return True
        if not self._fence:
            if not final and _OPEN_LIST_ITEM.match(text, at):
                return False
            if _LIST_ITEM.match(text, at):
                self._in_list = True
            elif text[at : at + 1] not in (" ", "\t", "\n", "\r"):
                self._in_list = False
        return True

    def _fence_line(self, text: str, at: int, start: int, final: bool) -> str | None:
        """The run that opens or closes a fence on this line, "" if it does not, None if that is open."""
        end = text.find("\n", start, at + _LONGEST_CODE)
        if end < 0:
            if len(text) - at >= _LONGEST_CODE:
                return ""
            if not final:
                return None
            end = len(text)
        run = _FENCE.match(text, start, end)
        if not run:
            return ""
        rest = text[run.end() : end]
        if self._fence:
            closes = run[0].startswith(self._fence) and not rest.strip()
            return run[0] if closes else ""
        return "" if run[0][0] == "`" and "`" in rest else run[0]

    def _code_span(self, text: str, at: int, start: int, final: bool, shown: list[str]) -> int:
        """Gives on a code span, or the run of backticks that opens none; stays while that is open."""
        if self._last != "`":  # else the run is the rest of one that was too long
            limit = at + _LONGEST_CODE
            end = text.find("\n", start, limit)
            line_ends = end >= 0 or (final and len(text) < limit)
            if end < 0:
                end = min(len(text), limit)
            for run in _TICKS.finditer(text, start, end):
                if run.end() - run.start() == start - at and (run.end() < end or line_ends):
                    return self._pass(text, at, run.end(), shown)
            if not line_ends and end < limit:
                return at
        return self._pass(text, at, start, shown)

    def _mark(self, text: str, at: int, start: int, final: bool, shown: list[str]) -> int:
        """Gives on what begins with the bracket at `start`, white space before it from `at`, or stays."""
        mark = _MARK.match(text, start, start + _LONGEST_MARK)
        if not mark:
            if not final and len(text) - start < _LONGEST_MARK and _OPEN_MARK.match(text, start):
                return at
            return self._pass(text, at, start + 1, shown)
        end = mark.end()
        if not final and (end == len(text) or _OPEN_TARGET.match(text, end)):
            return at
        before = text[start - 1] if start > at else self._last
        if (before == "[" and text[end : end + 1] == "]") or _TARGET.match(text, end):
            return self._pass(text, at, end, shown)
        given, unreal = self._numbers(mark["numbers"])
        real = [number for number in given if number in self._allowed]
        unreal += len(given) - len(real)
        if not given and _ends_name(before) and _PLAIN.fullmatch(text, start + 1, end - 1):
            self._pass(text, at, end, shown)
            self._last = "_"  # so that the next index of `m[9][8]` is one, too
            return end
        self.cited.update(real)
        self.removed += min(unreal, _MOST_REMOVED)  # of a range such as [1-999999]
        self._blank = False
        if not unreal:
            return self._pass(text, at, end, shown)
        if real:
            shown.append(f"{text[at:start]}[{', '.join(map(str, real))}]")
        self._last = "]"
        return end

    def _numbers(self, numbers: str) -> tuple[list[int], int]:
        """The real sources among the numbers of a mark, and how many of the others it has."""
        real: list[int] = []
        count = 0
        for first, last in _SPAN.findall(numbers):
            low, high = sorted((int(first), int(last or first)))
            count += high - low + 1
            real += range(max(low, 1), min(high, self._sources) + 1)
        return real, count - len(real)


def _ends_name(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "_)")


_BLANK_LOOKING = (
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # drawn as nothing, but of other categories
)


def says_nothing(answer: str) -> bool:
    """Whether an answer has nothing but citation marks, white space and invisible characters."""
    return all(
        char in _BLANK_LOOKING
        or unicodedata.category(char) in ("Cc", "Cf", "Cn", "Zs", "Zl", "Zp")
        or "\ufe00" <= char <= "\ufe0f"
        for char in _MARK.sub("", answer)
    )


# --- grounded

# What may come before the sentence that is judged
_LEAD = re.compile(
    r"""
    <think(?:ing)?>.*?</think(?:ing)?>
    | \#{1,6}[ ][^\n]*
    | (?:\*\*|__)[^\n*_]{1,60}(?:\*\*|__)[ ]*(?:\n|\Z)
    | (?:\*\*)?(?:answer|response|reply|回答|答案|答复|答|结论)(?:\*\*)?[ ]?[:：](?:\*\*)?
    | [^\n.!?。！？]{0,60}[:：](?:\*\*)?[ ]*(?:\n|\Z)
    | (?:hello|hi|hey|dear|greetings|good[ ](?:day|morning|afternoon|evening)|thanks|thank[ ]you
        |(?:great|good)[ ]question|sure|certainly|of[ ]course)\b[^.!?,:;\n]{0,80}(?:[.!?,:;]+|\n|\Z)
    | (?:(?:I(?:'m|[ ]am)|we(?:'re|[ ]are))[ ](?:\w+[ ])?sorry|sorry|(?:my[ ])?apologies|I[ ]apologi[sz]e
        |unfortunately|regrettably)\b(?:[ ]for[ ][^,.!\n]{1,50})?(?:[ ]to[ ]say)?(?:[ ]that\b)?
        [\s,.!;:—-]*(?:(?:but|however)\b[\s,]*)?
    | (?:您好|你好|感谢|谢谢|多谢|(?:很|非常|十分)?(?:抱歉|遗憾)|对不起|不好意思)[^，,。！!：:；\n]{0,30}
        (?:[，,。！!：:；]+|\n|\Z)
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# English: who declines is the subject. SRC are the sources; "the release notes" and "the policy" are not.
_EN_GIVEN = r"(?:provided|given|available|supplied|retrieved|listed|cited|above|at[ ]hand|here)"
_EN_SRC = rf"""(?:
    (?:(?:the|these|those|your|our|this|any|all|both|of|{_EN_GIVEN}|numbered|current|company's)[ ]){{0,4}}
    (?:(?:sources?|documents?|documentation|context|knowledge[ ]base|passages|excerpts|materials?)
        |(?<=(?:provided|supplied)[ ])(?:information|texts?|notes|content)
        |(?<=available[ ])(?:information|texts?|notes|content)|(?<=given[ ])(?:information|texts?|notes|content)
        |(?:information|texts?|notes|content)(?=[ ](?:provided|given|available|supplied)))\b
    (?:[ ](?:that[ ]|which[ ]|I[ ](?:have|was)[ ]|you[ ]|was[ ]|were[ ]|have[ ]been[ ])*{_EN_GIVEN})?)"""  # noqa: E501
_EN_TELL = r"""(?:contain|include|mention|state|say|provide|cover|specif(?:y|ie)|answer|discuss|address|describe
    |give|have|has|indicate|explain|define|list|offer|tell|name|identif(?:y|ie)|show|hold|refer|talk|make)"""  # noqa: E501
_EN_TOLD = r"""(?:contained|included|mentioned|stated|provided|covered|specified|answered|found|given|discussed
    |addressed|described|explained|available|determined|established|inferred|derived|part[ ]of)"""  # noqa: E501
_EN_NO_INFO = r"""(?:(?:no|not[ ]enough|not[ ]any|insufficient)[ ](?:\w+[ ])?
    (?:information|answer|mention|details?|data|indication|reference|evidence)\b|nothing\b)"""
_EN_IN = r"(?:[ ](?:explicitly|directly|clearly))?[ ](?:in|by|from|within|with|based[ ]on|using)"
_EN_DECLINES = re.compile(
    rf"""
    (?:(?:based[ ]on|according[ ]to|from|in|given|after[ ]\w+|having[ ]\w+)[ ]{_EN_SRC}[^,.;:]{{0,30}},[ ])?(?:
    # the sources do not contain, are silent, say nothing
    {_EN_SRC}[ ](?:(?:\w+ly|also|just|themselves)[ ])?(?:
        (?:(?:do|does|did)(?:[ ]not|n't)|cannot|can't)[ ](?!only|just|merely)(?:\w+[ ]){{0,2}}?{_EN_TELL}\b
        |fails?[ ]to[ ]{_EN_TELL}\b
        |(?:is|are)[ ](?:silent|insufficient|irrelevant|unrelated|inconclusive|not[ ](?:sufficient|enough|relevant))
        |(?:contain|include|provide|give|hold|offer|make|mention|ha(?:ve|s))s?[ ](?:no|nothing)\b
        |says?[ ]nothing\b|lacks?\b)
    # none of the sources mentions, nothing in the sources says
    |(?:none|neither)[ ]of[ ]{_EN_SRC}[ ](?:\w+ly[ ])?{_EN_TELL}e?s?\b
    |no[ ](?:source|document|passage)s?[ ](?:\w+ly[ ])?{_EN_TELL}e?s?\b
    |nothing[ ]in[ ]{_EN_SRC}[ ](?:\w+ly[ ])?(?:{_EN_TELL}e?s?|about|on)\b
    # I cannot answer, I do not know
    |(?:I|we)(?:[ ]am|'m|[ ]are|'re)?[ ](?:(?:\w+ly|still|just)[ ])?(?:
        (?:cannot|can't|can[ ]not|could[ ]not|couldn't|not[ ]able[ ]to|unable[ ]to|did[ ]not|didn't|do[ ]not|don't)
        [ ](?:\w+ly[ ])?(?:answer|find|determine|say|tell|locate|confirm|infer|know|help
            |(?:provide|give|have)[ ](?:\w+[ ]){{0,3}}?(?:answer|information|details))\b
        |have[ ](?:no|not[ ]enough|insufficient)[ ](?:\w+[ ])?(?:answer|information|details|data)\b
        |found[ ](?:no|nothing)\b)
    # it is not possible to answer, this is not in the sources
    |it(?:'s|[ ]is)[ ](?:not[ ]possible|impossible)[ ]to[ ](?:answer\b|[^,;:]{{0,80}}?{_EN_IN}[ ]{_EN_SRC})
    |it(?:'s|[ ]is)[ ](?:unclear|not[ ]clear)[ ]from[ ]{_EN_SRC}
    |(?:it|this|that|(?:this|the|your)[ ]question)[ ](?:cannot|can't|could[ ]not)[ ]be[ ]answered\b
    |(?!{_EN_SRC}[ ](?:also[ ])?{_EN_TELL}e?s?\b)[^,;:]{{1,80}}?(?:[ ](?:is|are|was|were)(?:[ ]not|n't)
        |[ ](?:cannot|can't|could[ ]not|couldn't)[ ]be)(?:[ ]\w+ly)?(?:[ ]{_EN_TOLD})?{_EN_IN}[ ]{_EN_SRC}
    |(?:there(?:'s|[ ](?:is|are|was|were))[ ])?{_EN_NO_INFO}[^,;:]{{0,100}}?{_EN_IN}[ ]{_EN_SRC})
    # based on the sources, there is no information
    |(?:based[ ]on|according[ ]to|from|in)[ ]{_EN_SRC}[^,.;:]{{0,30}},[ ]there[ ](?:is|are)[ ]{_EN_NO_INFO}
        (?=[ ]?(?:$|[.!]|about|on\b|regarding|concerning|to[ ]answer|available))
    """,  # noqa: E501
    re.IGNORECASE | re.VERBOSE,
)

# Chinese, after _SIMPLIFIED: the sources, I, or no one ("无法回答这个问题"); not "客户资料", not "未找到主管时，……"  # noqa: E501
_ZH_SRC = r"""(?:(?:所|您|目前|现有|已有|以上|上述|这些|该|本|当前|检索到|提供|给出?|给定|相关|参考|所有|全部|任何|的|在|从){0,6}
    (?:资料库?|来源|文档|知识库|上下文|材料|(?<=[的供有])(?:信息|内容|文件|文本|片段)|参考内容)(?:片段|内容|本身)?
    (?:之?中|里面?|内)?)"""  # noqa: E501
_ZH_NOT = r"(?:并未|未能?|没有?|并?没有|并?不|无)"
_ZH_TELL = r"""(?:包含|包括|提到|提及|提供|说明|给出|涉及|记载|讨论|回答|指出|描述|列出|写明|规定|解释|介绍|覆盖
    |含有|显示|谈到|谈及|交代|记录|找到)"""  # noqa: E501
_ZH_SILENT = rf"""(?:[，,]?(?:都|均|也|并|暂|暂时|目前|似乎)?(?:
    {_ZH_NOT}(?:直接|明确|具体|任何|能够?|足以|有){{0,2}}{_ZH_TELL}
    |没有[^，,。；]{{0,20}}(?:答案|信息|资料|内容|说明|记录)|(?:无|缺乏|缺少)相关|只字未提|不足|不够|没有答案
    |(?:找|查|搜|看|检索|查询)不[到出]|(?:无法|不能|难以)[^，,。；]{{0,6}}(?:回答|确定|找到|得出|判断|查到)
    |(?:与|和|跟)[^，,。；]{{1,20}}(?:无关|不相关|没有关系)))"""
_ZH_DECLINES = re.compile(
    rf"""
    (?![^，,。；]{{0,40}}(?:时|的话)[，,])  # a condition
    (?:(?:根据|基于|依据|依照|按照?){_ZH_SRC}[，,]?)?(?:
    (?<!根据)(?<!基于)(?<!依据)(?<!资料[，,])(?<!文档[，,])(?<!来源[，,]){_ZH_SRC}{_ZH_SILENT}
    |没有(?:任何|一个|哪个)?(?:资料|来源|文档){_ZH_TELL}
    # 我不知道，我无法根据来源确定
    |我(?!们|司|方)(?:目前|暂时|也|并|实在|(?:根据|从|在){_ZH_SRC}){{0,3}}
        (?:无法|不能|难以|不知道|不清楚|没能|(?:没有?|未能?)找到|(?:找|查)不到|没有(?:足够|相关))
    |我们(?:目前|暂时|也|并)?(?:无法|不能|难以)回答
    # 无法回答，无法从资料中得出答案，没有找到相关信息
    |(?:无法|不能|难以)(?:回答|(?:根据|基于|从|在){_ZH_SRC}
        |(?:确定|得出|判断|找到|得知)(?=[^，,。；]{{0,20}}(?:答案|结论|问题)|[。\s]|\Z))
    |(?:并?没有|未能?|没能?|找不到|查不到)(?:找到|检索到|查到)?(?:任何|与[^，,。；]{{1,20}}|足够的?)?
        (?:相关|有关)的?(?:答案|信息|资料|内容|说明)
    |没有足够的?(?:信息|资料|依据)
    # 答案不在资料中，这个问题在资料中没有答案
    |[^，,。；]{{0,15}}(?:问题|答案|此事|这一?点|相关(?:信息|内容))[^，,。；]{{0,4}}?(?:
        (?:并?不在|并?未在|没有在){_ZH_SRC}|(?=[在从]){_ZH_SRC}{_ZH_SILENT}|[^，,。；]{{0,2}}(?:无法|不能)回答))
    """,
    re.VERBOSE,
)
_SIMPLIFIED = str.maketrans(
    "資沒說無據關問題內來識庫檔這個並給訊夠確斷討論記載與該應從現檢詢導實難為對謝遺業顯錄釋紹規嗎裡裏夾’",
    "资没说无据关问题内来识库档这个并给讯够确断讨论记载与该应从现检询导实难为对谢遗业显录释绍规吗里里夹'",
)
_SENTENCE_END = re.compile(r"[。！？\n]|[.!?](?=\s|\Z)")
_MARKUP = ' \t\r\n>*_#-•"“「\ufeff\u200b'


def why_not_grounded(answer: str, cited: set[int]) -> str | None:
    """Why an answer does not rest on the sources, or None when it does: it cites and does not decline.

    That a model declines is read from its first sentence, in English or Chinese; the prompt asks for that.
    Headings, greetings and the like before it are skipped. Who declines must be its subject: "according to
    the sources, the basic plan does not include exports [1]" is an answer.
    """
    text = answer.strip().translate(_SIMPLIFIED)
    for _ in range(12):
        if _declines(text):
            return "the model says that the sources do not hold the answer"
        lead = _LEAD.match(text)
        if not lead or not lead.end():
            break
        text = text[lead.end() :].lstrip()
    return None if cited else "the answer cites no source"


def _declines(text: str) -> bool:
    start = _MARK.sub("", text[:1000]).lstrip(_MARKUP)
    end = _SENTENCE_END.search(start)
    first = re.sub(r"[ \t*_]+", " ", start[: end.end()] if end else start)
    return bool(_EN_DECLINES.match(first) or _ZH_DECLINES.match(first))
