"""Questions of which it is known whether the answer is there, with the signals of their retrieval."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyrag.beir import (
    Asking,
    Dataset,
    Note,
    Storing,
    load_dataset,
    read_off_topic,
    stored_corpus,
)
from pyrag.calibration import ANSWERABLE, Case
from pyrag.config import Settings
from pyrag.db import Database
from pyrag.errors import InvalidRequest, RetrievalNotReady
from pyrag.evaluation import Question
from pyrag.ingest import Silent
from pyrag.lexical import same_text
from pyrag.models import Hit
from pyrag.service import Service

OFF_TOPIC, HELD_OUT, OWN = "off-topic", "held-out", "own"


@dataclass(slots=True)
class Labelled:
    """Cases, and what was left out of them or is odd about them."""

    cases: list[Case] = field(default_factory=list)
    without_words: list[str] = field(default_factory=list)  # ids of questions that are judged by similarity
    repeated: list[str] = field(default_factory=list)  # ids of questions asked before: each text counts once
    unknown: dict[str, list[str]] = field(default_factory=dict)  # questions with no source in the index
    absent: dict[str, list[str]] = field(default_factory=dict)  # of others, the sources not in the index
    not_found: list[str] = field(default_factory=list)  # answerable ones without their source among the hits
    _texts: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, service: Service, kind: str, key: str, question: str, base: str = "") -> list[Hit]:
        """Asks a question and keeps what the search gave for it, unless it has no words; the hits."""
        hits, decision = service.find(question)
        share = decision.cjk_share
        if share is None:  # nothing was found
            share = service.database.cjk_share(question)
        if share is None or (hits and decision.coverage is None):
            self.without_words.append(key)
        elif (kind, base, same_text(question)) in self._texts:
            self.repeated.append(key)
        else:
            self._texts.add((kind, base, same_text(question)))
            signals = (decision.similarity or 0.0, decision.coverage or 0.0, share)
            answered = decision.mode == "rag"
            self.cases.append(Case(key, question, kind, *signals, base, answered, decision.threshold))
        return hits

    @property
    def sources_not_indexed(self) -> dict[str, list[str]]:
        """The questions that expect each source that is not in the index."""
        found: dict[str, list[str]] = defaultdict(list)
        for key, sources in (*self.unknown.items(), *self.absent.items()):
            for source in sources:
                found[source].append(key)
        return dict(found)

    @property
    def kinds(self) -> dict[str, int]:
        """The number of cases of each kind, answerable ones first."""
        counts = Counter(case.kind for case in self.cases)
        return dict(sorted(counts.items(), key=lambda item: (item[0] != ANSWERABLE, item[0])))


def ask_questions(
    service: Service,
    questions: Iterable[Question],
    off_topic: dict[str, str],
    held_out: bool,
    asking: Asking = lambda questions: nullcontext(lambda: None),
) -> Labelled:
    """The cases of questions about the user's index.

    With `held_out` each answerable question is asked once more without the notes that it expects: of a copy
    of the index in a throw-away database, where they are deleted for the length of one search.
    """
    asked = list(questions)
    labelled = Labelled()
    expected = {each for question in asked for each in question.expected_sources}
    unknown = set(service.database.find_unknown_sources(sorted(expected), service.index))
    answerable = []
    for question in asked:
        if question.expected_mode == "rag" and unknown.issuperset(question.expected_sources):
            labelled.unknown.setdefault(question.id, []).extend(question.expected_sources)
        elif question.expected_mode == "rag":
            answerable.append(question)
            if absent := [each for each in question.expected_sources if each in unknown]:
                labelled.absent.setdefault(question.id, []).extend(absent)
    own = [q for q in asked if q.expected_mode == "no_answer"]
    with asking(len(answerable) * (1 + held_out) + len(own) + len(off_topic)) as done:
        for question in answerable:
            hits = labelled.add(service, ANSWERABLE, question.id, question.question)
            if not {hit.source for hit in hits}.intersection(question.expected_sources):
                labelled.not_found.append(question.id)
            done()
        for question in own:
            labelled.add(service, OWN, question.id, question.question)
            done()
        for key, text in off_topic.items():
            labelled.add(service, OFF_TOPIC, key, text)
            done()
        if held_out and answerable:
            _ask_held_out(service, answerable, labelled, done)
    return labelled


def _ask_held_out(
    service: Service, questions: list[Question], labelled: Labelled, done: Callable[[], None]
) -> None:
    groups: dict[tuple[str, ...], list[Question]] = defaultdict(list)
    for question in questions:
        groups[tuple(sorted(question.expected_sources))].append(question)
    with service.database.throwaway() as copy:
        service.database.copy_index(copy, service.index)
        for sources, group in groups.items():
            with copy.without(sources) as rest:
                other = Service(service.settings, rest)
                for question in group:
                    try:
                        labelled.add(other, HELD_OUT, question.id, question.question)
                    except RetrievalNotReady:
                        raise InvalidRequest(
                            f"--held-out: without {', '.join(sources)} the index is empty",
                            hint="Neighbours are needed: ingest more notes, or leave --held-out away.",
                        ) from None
                    done()


def ask_dataset(
    folder: Path,
    settings: Settings,
    server: Database,
    note: Note,
    off_topic: Path | None,
    held_out: bool,
    storing: Storing = lambda: nullcontext(Silent()),
    asking: Asking = lambda questions: nullcontext(lambda: None),
    calibrations: Iterable[dict[str, Any]] = (),
) -> Labelled:
    """The cases of a BEIR folder, stored in a throw-away database on the server.

    With `held_out` and no heldout.txt a half of the passages, chosen by hash, is left out. Of `calibrations`
    (`Database.list_calibrations`) the user's own count there too.
    """
    listed = (folder / "heldout.txt").exists()
    dataset = load_dataset(folder, note, off_topic=off_topic, held_out=held_out and listed)
    if held_out and not listed:
        dataset = leave_half_out(dataset)
    with stored_corpus(dataset, server) as (corpus, database):
        service = Service(settings, database)
        corpus.ingest(service, note, storing)
        for row in calibrations:
            if row["in_force"] and row["origin"] == "calibrated":
                database.copy_calibration(service.index, row)
        labelled = Labelled()
        answerable = {same_text(text) for text in dataset.answerable.values()}
        with asking(len(dataset.answerable) + len(dataset.unanswerable)) as done:
            for key, text in dataset.answerable.items():
                hits = labelled.add(service, ANSWERABLE, key, text)
                if not {corpus.id_of(hit.source) for hit in hits} & dataset.qrels[key].keys():
                    labelled.not_found.append(key)
                done()
            for key, text in dataset.unanswerable.items():
                if same_text(text) in answerable:  # held out, but another passage answers the same question
                    labelled.repeated.append(key)
                else:
                    labelled.add(service, OFF_TOPIC if key.startswith("off-topic ") else HELD_OUT, key, text)
                done()
    return labelled


def read_strangers(
    path: Path | None, asked: Path, questions: Iterable[Question], note: Note
) -> dict[str, str]:
    """The questions of an off-topic file, none without one."""
    if path is None:
        return {}
    return read_off_topic(
        path, note, asked, {q.question: q.id for q in questions if q.expected_mode == "rag"}
    )


def leave_half_out(dataset: Dataset) -> Dataset:
    """The data set without a half of its passages, chosen by the hash of their ids.

    Raises `InvalidRequest` when that leaves no question of one class.
    """
    gone = {key for key in dataset.passages if hashlib.sha256(key.encode()).digest()[0] % 2}
    left = {key: {p: s for p, s in judged.items() if p not in gone} for key, judged in dataset.qrels.items()}
    kept = {key: judged for key, judged in left.items() if judged}
    held = {key: text for key, text in dataset.answerable.items() if key not in kept}
    if not kept or not held:
        raise InvalidRequest(
            f"--held-out: {len(dataset.passages)} passages of {dataset.name} are too few to leave a half out",
            hint="List the ids of passages to leave out in heldout.txt, one a line.",
        )
    return replace(
        dataset,
        passages={key: each for key, each in dataset.passages.items() if key not in gone},
        answerable={key: dataset.answerable[key] for key in kept},
        qrels=kept,
        unanswerable=dataset.unanswerable | held,
    )
