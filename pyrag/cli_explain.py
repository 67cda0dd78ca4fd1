"""The commands that say why: `rag explain` and `rag why-not`."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyrag.cli_common import (
    AfterOption,
    AllTagsOption,
    FallbackOption,
    JsonOption,
    PathOption,
    TagOption,
    TopKOption,
    VaultOption,
    filter_of,
    print_json,
    service_of,
    shown,
)

if TYPE_CHECKING:
    from pyrag.schemas import ExplainedCandidate, NoteChunk

_WIDTH = 100  # columns of a terminal that a line may take
_HEAD = "  # outcome         score words vect. cover note > heading"


def explain(
    ctx: typer.Context,
    question: Annotated[str, typer.Argument(help="The question, in any language.")],
    top_k: TopKOption = None,
    fallback: FallbackOption = False,
    vault: VaultOption = None,
    path: PathOption = None,
    tag: TagOption = None,
    all_tags: AllTagsOption = False,
    updated_after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show why a question is answered from these chunks, or not at all; no model is asked.

    The 50 best chunks by place: what became of each, its similarity, its places by words and by vectors, and
    how much of the question's words it covers.
    """
    wanted = filter_of(vault, path, tag, all_tags, updated_after)
    response = service_of(ctx, question).explain(question, top_k, fallback, wanted)
    if as_json:
        print_json(response.model_dump())
        return
    print(shown(response.summary))
    print(f"retrieval {response.retrieval}, scan {response.scan}; {response.decision.reason}")
    if response.context_tokens:
        print(f"sources: {response.context_tokens} of {response.budget} tokens")
    if response.terms:
        words = ", ".join(f"{each.term} ({each.chunks})" for each in response.terms)
        print(f"words and the chunks that have them: {shown(words)}")
    _print_table(response.candidates)


def why_not(
    ctx: typer.Context,
    question: Annotated[str, typer.Argument(help="The question, in any language.")],
    note: Annotated[
        str,
        typer.Argument(
            metavar="PATH[#HEADING]", help="The note that is missed, as its path or the end of it."
        ),
    ],
    top_k: TopKOption = None,
    vault: VaultOption = None,
    path: PathOption = None,
    tag: TagOption = None,
    all_tags: AllTagsOption = False,
    updated_after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a note stands for a question and what kept it out, also if it is not indexed at all."""
    wanted = filter_of(vault, path, tag, all_tags, updated_after)
    response = service_of(ctx, question).why_not(question, note, top_k, wanted)
    if as_json:
        print_json(response.model_dump(mode="json"))
        return
    print(shown(response.summary))
    for hint in response.hints:
        print(f"  {shown(hint)}")
    if response.best is not None:
        print(f"\nits best chunk:\n{_HEAD}\n{_line_of_best(response.best, response.status)}")
    if response.ahead:
        print("\nahead of it:")
        _print_table(response.ahead, blank=False)


def _print_table(candidates: Sequence[ExplainedCandidate], blank: bool = True) -> None:
    if not candidates:
        return
    print(f"\n{_HEAD}" if blank else _HEAD)
    for each in candidates:
        outcome = f"used [{each.number}]" if each.number is not None else each.outcome
        place = "-" if each.place is None else str(each.place)
        numbers = _numbers(each.lexical_rank, each.vector_rank, each.coverage)
        start = f"{place:>3} {outcome:<15} {each.score:.3f} {numbers} "
        where = f"{each.source} > {each.heading}" if each.heading else each.source
        if _width(start + shown(where)) > _WIDTH:  # the name of the note tells more than its folder
            where = where.removeprefix(each.source.rpartition("/")[0] + "/")
        print(_fitted(start + shown(where)))
        if each.outcome == "duplicate" or "says the same" in each.reason:
            print(_fitted(f"    {each.reason}"))


def _line_of_best(best: NoteChunk, status: str) -> str:
    place = "-" if best.place is None else str(best.place)
    score = "-" if best.score is None else f"{best.score:.3f}"
    numbers = _numbers(best.lexical_rank, best.vector_rank, best.coverage)
    return _fitted(f"{place:>3} {status:<15} {score:>5} {numbers} {shown(best.heading)}")


def _numbers(lexical_rank: int | None, vector_rank: int | None, coverage: float | None) -> str:
    ranks = ("-" if rank is None else str(rank) for rank in (lexical_rank, vector_rank))
    return " ".join(f"{each:>5}" for each in (*ranks, "-" if coverage is None else f"{coverage:.2f}"))


def _width(line: str) -> int:
    """Columns that a line takes in a terminal; wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


def _fitted(line: str) -> str:
    """A line cut to the width of a terminal."""
    if _width(line) <= _WIDTH:
        return line
    while _width(line) > _WIDTH - 1:
        line = line[:-1]
    return f"{line}…"
