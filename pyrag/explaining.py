"""Puts into words why a question is answered or not, and why a note is among the sources or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pyrag.models import (
    Candidate,
    Context,
    Decision,
    Explained,
    NoteFound,
    NotePath,
    NoteTrace,
    RankedChunk,
    Retrieval,
)
from pyrag.schemas import (
    DecisionRecord,
    ExplainedCandidate,
    ExplainedTerm,
    ExplainResponse,
    NoteChunk,
    NoteName,
    NoteRun,
    Outcome,
    WhyNotResponse,
    WhyNotStatus,
)

_PREVIEW = 200  # characters
_DEPTH = 50  # candidates that are looked at
_MOST = 20  # the highest top_k


def explain_response(
    explained: Explained,
    decision: Decision,
    context: Context,
    how: dict[str, Any],
    top_k: int,
    budget: int,
    fallback: bool,
    strict: bool = False,
) -> ExplainResponse:
    """The reply to `explain`. `decision` and `context` are those of `ask`, `how` what each reply says.

    `strict`: quotes are checked when a model has answered (RAG_REQUIRE_QUOTES).
    """
    return ExplainResponse(
        summary=_sentence(explained, decision, context, budget, fallback, strict),
        **how,
        decision=DecisionRecord(**asdict(decision)),
        terms=[ExplainedTerm(term=each.term, chunks=each.chunks, weight=each.weight)
               for each in explained.terms],
        candidates=judge_candidates(explained, decision, context, top_k, budget),
        context_tokens=context.token_count,
        budget=budget,
    )  # fmt: skip


def judge_candidates(
    explained: Explained, decision: Decision, context: Context, top_k: int, budget: int
) -> list[ExplainedCandidate]:
    """Each candidate with its outcome and the reason for it."""
    blocks = {block.hit.chunk_id: block for block in context.blocks}
    dropped = {each.chunk_id: each for each in context.dropped}
    places = {each.hit.chunk_id: each.place for each in explained.candidates}
    joined = {chunk_id: block.number for block in context.blocks for chunk_id in block.joined}

    def judged(each: Candidate) -> ExplainedCandidate:
        hit, block, drop = each.hit, blocks.get(each.hit.chunk_id), dropped.get(each.hit.chunk_id)
        outcome: Outcome
        if each.state == "filtered":
            outcome, reason = "filtered", "does not pass the filter"
        elif each.state == "beyond_top_k":
            outcome, reason = "beyond_top_k", _only_best(top_k)
            if hit.duplicate_of is not None:
                reason += f"; says the same as place {places[hit.duplicate_of]}"
            if hit.chunk_id in joined:
                reason += f"; as its neighbour, [{joined[hit.chunk_id]}] brings its text"
        elif block is not None:
            outcome, reason = "used", f"source [{block.number}]"
            if block.truncated:
                reason += ", cut to fit the budget"
            if block.joined:
                reason += ", with the text around it"
        elif drop is None:
            outcome, reason = "below_threshold", decision.reason
        elif drop.why == "duplicate":
            outcome = "duplicate"
            reason = f"says the same as place {places.get(drop.same_as or 0)}"
        else:
            outcome, reason = "over_budget", f"no room for it in {budget} tokens"
        return ExplainedCandidate(
            place=each.place,
            outcome=outcome,
            number=block.number if block is not None else None,
            reason=reason,
            chunk_id=hit.chunk_id,
            vault=hit.vault_path,
            source=hit.source,
            heading_path=hit.heading_path,
            heading=hit.heading,
            preview=hit.content[:_PREVIEW],
            score=hit.score,
            vector_rank=hit.vector_rank,
            lexical_rank=hit.lexical_rank,
            lexical_score=hit.lexical_score,
            coverage=hit.coverage,
            matched_terms=hit.matched_terms,
            fused_score=hit.fused_score,
        )

    return [judged(each) for each in explained.candidates]


def _sentence(
    explained: Explained, decision: Decision, context: Context, budget: int, fallback: bool, strict: bool
) -> str:
    """The sentence on top of an explanation."""
    found = len(explained.hits)
    if decision.mode == "rag":
        later = "; given only if its quotes are true" if strict else ""
        sources = f"{len(context.blocks)} of {_count(found, 'chunk')}"
        return f"Answered from {sources}: {_compared(decision)}{later}."
    if decision.mode == "fallback":
        return f"Passed to the model's general knowledge: {_refusal(explained, decision, budget)}."
    disabled = "; fallback was asked for, but it is disabled globally"
    asked = fallback and decision.rule != "no_room"
    return f"Refused: {_refusal(explained, decision, budget)}{disabled if asked else ''}."


def _refusal(explained: Explained, decision: Decision, budget: int) -> str:
    """Why there is no answer from the sources."""
    if decision.rule == "nothing_found":
        barred = sum(each.state == "filtered" for each in explained.candidates)
        return "nothing was found" + (
            f"; {_count(barred, 'chunk')} did not pass the filter" if barred else ""
        )
    if decision.rule == "no_room":
        found = _count(len(explained.hits), "chunk")
        return f"RAG_CONTEXT_TOKEN_BUDGET={budget} has room for none of the {found} found"
    if decision.rule == "below_min_similarity":
        return _compared(decision)
    if decision.calibration is None:
        return f"no chunk is similar enough: {_compared(decision)}"
    signals = f"best coverage {decision.coverage or 0:.2f}"
    if decision.similarity is not None:
        signals += f", best similarity {decision.similarity:.2f}"
    return f"the answer is probably not there ({signals}); {_compared(decision)}"


def _compared(decision: Decision) -> str:
    """What was compared with what."""
    if decision.rule == "no_room":
        return decision.reason
    if decision.rule == "below_min_similarity":
        similarity, floor = _apart(decision.similarity or 0, decision.min_similarity or 0)
        return f"best similarity {similarity} is below the floor {floor} of RAG_MIN_SIMILARITY"
    confidence, threshold = _apart(decision.confidence, decision.threshold)
    verb = "is below" if decision.rule == "below_threshold" else "is not below"
    return f"confidence {confidence} {verb} the threshold {threshold}"


def _apart(first: float, second: float) -> tuple[str, str]:
    """Two numbers with two digits, or as many as tell them apart."""
    digits = next((n for n in range(2, 17) if f"{first:.{n}f}" != f"{second:.{n}f}" or first == second), 17)
    return f"{first:.{digits}f}", f"{second:.{digits}f}"


def _only_best(top_k: int) -> str:
    return f"only the {top_k} best are read" if top_k > 1 else "only the best one is read"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# A note that is missed -----------------------------------------------------------------------------


def unsearched_response(path: NotePath) -> WhyNotResponse | None:
    """The reply to `why_not` where no search is needed to tell; None where one is."""
    if not path.notes:
        return _untraced(path) if path.trace is None else _traced(path, path.trace)
    note = path.notes[0]
    if len(path.notes) > 1:
        hints = [f"Name one of them: {each.vault_path}/{each.relative_path}" for each in path.notes]
        return _unsearched("ambiguous", f"{path.path} may be any of {len(hints)} notes.", path, hints=hints)
    if note.chunks == 0:
        why = f"{note.relative_path} is indexed, but holds no text to be found."
        return _unsearched("empty_note", why, path, _about(note), note)
    return None


def unembedded_response(path: NotePath, why: str) -> WhyNotResponse:
    """The reply to `why_not` where nothing at all has a vector of the current model."""
    note = path.notes[0]
    summary = f"{note.relative_path} is stored, but {why}."
    hints = [f"Run: rag ingest {note.vault_path}", *_about(note)]
    return _unsearched("not_embedded", summary, path, hints, note)


def why_not_response(
    path: NotePath,
    explained: Explained,
    decision: Decision,
    context: Context,
    retrieval: Retrieval,
    top_k: int,
    budget: int,
) -> WhyNotResponse:
    """The reply to `why_not` for a note that is stored: where it stands, and what kept it out."""
    note = path.notes[0]
    judged = judge_candidates(explained, decision, context, top_k, budget)
    about = _about(note)
    if not explained.ranked:
        hints = [f"Its headings: {'; '.join(note.headings)}" if note.headings else "It has no headings."]
        summary = f"{note.relative_path} has no heading {path.heading}."
        return _reply("heading_unknown", summary, path, note, hints + about, decision=decision)
    chunks = {each.chunk_id: each for each in explained.ranked}
    own = [each for each in judged if each.chunk_id in chunks and each.place is not None]
    used = [each for each in own if each.outcome == "used"]
    best = (used or own or [None])[0]  # type: ignore[list-item]
    chunk = chunks[best.chunk_id] if best is not None else explained.ranked[0]
    words = [each.term for each in explained.terms]
    place = best.place if best is not None else _place(chunk, retrieval)
    status: WhyNotStatus
    if best is not None:
        status = best.outcome
    elif not any(each.passes for each in explained.ranked):
        status = "filtered"
    else:
        chunk = next(each for each in explained.ranked if each.passes)
        place = _place(chunk, retrieval)
        status = _unplaced(chunk, explained, retrieval)
    summary = _verdict(status, path, note, chunk, place, used, best, explained, decision, top_k, budget)
    within = [each for each in judged if each.place is not None and each.place <= len(explained.hits)]
    ahead = [each for each in within if place is None or status == "filtered" or each.place < place]  # type: ignore[operator]
    return _reply(
        status,
        summary,
        path,
        note,
        _advice(status, chunk, place, words, note, explained, decision) + about,
        best=NoteChunk(
            chunk_id=chunk.chunk_id,
            heading_path=chunk.heading_path,
            heading=chunk.heading_path[-1] if chunk.heading_path else "",
            preview=chunk.content[:_PREVIEW],
            place=None if status == "filtered" else place,
            score=chunk.similarity,
            vector_rank=chunk.vector_rank,
            lexical_rank=chunk.lexical_rank,
            lexical_score=chunk.lexical_score,
            coverage=chunk.coverage,
            matched_terms=chunk.matched_terms,
            missing_terms=_missing(chunk, words) if words else None,
        ),
        ahead=[] if status == "used" else ahead,
        decision=decision,
    )


def _place(chunk: RankedChunk, retrieval: Retrieval) -> int | None:
    """The place of a chunk beyond the candidates, where one leg alone makes it."""
    if retrieval == "vector":
        return chunk.vector_rank
    if retrieval == "lexical" and chunk.vector_rank is None:
        return chunk.lexical_rank
    return None


def _unplaced(chunk: RankedChunk, explained: Explained, retrieval: Retrieval) -> WhyNotStatus:
    """What became of a chunk that passes the filter and is not among the candidates."""
    if chunk.vector_rank is None and chunk.lexical_rank is None:
        by_vectors = retrieval != "lexical" or any(
            each.hit.vector_rank is not None for each in explained.candidates
        )
        return "not_embedded" if by_vectors and not chunk.embedded else "not_found"
    by_index = any(each.scan == "index" for each in explained.hits)
    if by_index and chunk.vector_rank is not None and chunk.vector_rank <= _DEPTH:
        return "missed_by_index"
    return "beyond_top_k"


def _verdict(
    status: WhyNotStatus,
    path: NotePath,
    note: NoteFound,
    chunk: RankedChunk,
    place: int | None,
    used: Sequence[ExplainedCandidate],
    best: ExplainedCandidate | None,
    explained: Explained,
    decision: Decision,
    top_k: int,
    budget: int,
) -> str:
    """The sentence on top of a why-not."""
    name = note.relative_path + (f"#{path.heading}" if path.heading else "")
    refused = "" if decision.mode == "rag" else f"; the question is refused anyway: {_compared(decision)}"
    if status == "used":
        numbers = ", ".join(f"[{each.number}]" for each in used)
        sources = "sources" if len(used) > 1 else "source"
        return f"It is not left out: {name} is {sources} {numbers} of the answer."
    if status == "duplicate" and best is not None:
        return f"{name} is at place {place}, but {best.reason}, and the same is not given twice."
    if status == "over_budget":
        return f"{name} is at place {place}, but there was no room for it in {budget} tokens."
    if status == "below_threshold":
        return f"{name} is at place {place}, but the question is refused: {_compared(decision)}."
    if status == "beyond_top_k":
        return f"{name} is {_standing(chunk, place)}, and {_only_best(top_k)}{refused}."
    if status == "filtered":
        return f"{name} does not pass the filter."
    if status == "missed_by_index":
        return f"{name} is {_standing(chunk, None)}, but the approximate index did not find it."
    if status == "not_embedded":
        return (
            f"{name} has no vector of the current embedding model, and no word in common with the question."
        )
    if explained.terms:
        return f"{name} has no word in common with the question."
    return f"{name} cannot be found by this question: it has no words and no vector to compare."


def _standing(chunk: RankedChunk, place: int | None) -> str:
    if place is not None:
        return f"at place {place}"
    legs = []
    if chunk.lexical_rank is not None:
        legs.append(f"{chunk.lexical_rank} by words")
    if chunk.vector_rank is not None:
        legs.append(f"{chunk.vector_rank} by vectors")
    return f"at place {' and '.join(legs)}"


def _missing(chunk: RankedChunk, words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in (chunk.matched_terms or [])]


def _advice(
    status: WhyNotStatus,
    chunk: RankedChunk,
    place: int | None,
    words: Sequence[str],
    note: NoteFound,
    explained: Explained,
    decision: Decision,
) -> list[str]:
    """What to do about it."""
    hints = []
    repeated = any(
        each.hit.chunk_id == chunk.chunk_id and each.hit.duplicate_of is not None
        for each in explained.candidates
    )
    answered = decision.mode == "rag"
    if status == "beyond_top_k" and answered and place is not None and place <= _MOST and not repeated:
        hints.append(f"It is among the best {place}: ask with --top-k {place} (HTTP: top_k)")
    if status == "over_budget":
        hints.append("Raise RAG_CONTEXT_TOKEN_BUDGET, or ask for fewer chunks.")
    if status == "filtered":
        hints.append("Leave out the filter, or widen it.")
    if status == "not_embedded":
        hints.append(f"Run: rag ingest {note.vault_path}")
    if status == "missed_by_index":
        hints.append("Measure the index with: rag db index status --check")
    missing = _missing(chunk, words)
    if missing and status not in ("used", "filtered"):
        hints.append(f"Words of the question that it lacks: {', '.join(missing)}")
    return hints


def _about(note: NoteFound) -> list[str]:
    """What is to be known about a stored note in any case."""
    hints = []
    if note.problem is not None:
        hints.append(f"Run {note.run_id} did not take in its newest state: {note.problem}")
    hints += [f"It was read with a warning: {warning}" for warning in note.warnings]
    return hints


def _traced(path: NotePath, trace: NoteTrace) -> WhyNotResponse:
    """The reply for a note that only the ledger knows."""
    name, run = trace.relative_path, f"run {trace.run_id}"
    again = f"Run: rag ingest {trace.vault_path}"
    show = f"See: rag runs show {trace.run_id}"
    status: WhyNotStatus
    if trace.fate == "failed":
        status, summary, hints = (
            "failed",
            f"Not indexed: {name} failed in {run}: {trace.reason}",
            [show, again],
        )
    elif trace.fate == "vanished":
        status = "deleted"
        summary = f"Not indexed: {name} failed in {run}, and a later run did not find it any more"
        hints = [show, again]
    elif trace.fate == "moved":
        status, summary = "moved", f"{name} was moved to {trace.moved_to} in {run}"
        hints = [f"Ask about {trace.moved_to}"]
    elif trace.fate == "pending":
        status, summary = "pending", f"Not indexed yet: {run} is at work and has not come to {name}"
        hints = ["Wait until it ends, then ask again.", show]
    elif trace.fate == "interrupted":
        status, summary = "pending", f"Not indexed: {run} ended before it came to {name}"
        hints = [again, show]
    elif trace.fate == "deleted":
        status, summary = "deleted", f"{name} was deleted in {run}: {trace.reason}"
        hints = [show]
    else:
        status, summary = "deleted", f"{name} was in the index in {run}, but has been removed since"
        hints = [again, show]
    return _unsearched(status, f"{summary.rstrip('.')}.", path, hints)


def _untraced(path: NotePath) -> WhyNotResponse:
    """The reply for a note that nobody knows."""
    if not path.known:
        summary = f"Nothing is indexed yet, so {path.path} is not either."
        return _unsearched("nothing_indexed", summary, path, ["Run: rag ingest PATH_OF_THE_VAULT"])
    hints = [f"Similar: {vault}/{name}" for vault, name in path.similar]
    parts = path.path.split("/")
    if any(part.startswith(".") and part.strip(".") for part in parts):
        hints.insert(0, "Files and folders whose names begin with a dot are not read.")
    elif "." in parts[-1] and ".md" not in parts[-1].lower():
        hints.insert(0, "Only files whose names end in .md are read.")
    hints.append("If it is in a vault, run: rag ingest PATH_OF_THE_VAULT")
    return _unsearched("never_seen", f"No run of rag ingest has seen {path.path}.", path, hints)


def _unsearched(
    status: WhyNotStatus,
    summary: str,
    path: NotePath,
    hints: Sequence[str] = (),
    note: NoteFound | None = None,
) -> WhyNotResponse:
    return _reply(status, summary, path, note, hints)


def _reply(
    status: WhyNotStatus,
    summary: str,
    path: NotePath,
    note: NoteFound | None,
    hints: Sequence[str],
    best: NoteChunk | None = None,
    ahead: Sequence[ExplainedCandidate] = (),
    decision: Decision | None = None,
) -> WhyNotResponse:
    known = note or path.trace
    run = None
    if note is not None and note.run_id is not None and note.run_at is not None:
        run = NoteRun(id=note.run_id, at=note.run_at)
    elif path.trace is not None:
        run = NoteRun(id=path.trace.run_id, at=path.trace.happened_at)
    return WhyNotResponse(
        summary=" ".join(summary.split()),
        status=status,
        note=NoteName(
            path=known.relative_path if known else path.path,
            vault=known.vault_path if known else None,
            heading=path.heading,
        ),
        run=run,
        best=best,
        ahead=list(ahead),
        hints=list(hints),
        decision=DecisionRecord(**asdict(decision)) if decision else None,
    )
