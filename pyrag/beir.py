"""Retrieval measured on a BEIR folder, in a database of its own: ranks, scores, refusals, comparisons.

Layout of a folder: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`), `qrels.tsv` or
`qrels/test.tsv` (question, document, score; Thakur et al., "BEIR", NeurIPS 2021), and where passages are to
be held out `heldout.txt` with one document id a line.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pyrag.config import Settings
from pyrag.db import Database, Index
from pyrag.errors import InvalidRequest
from pyrag.ingest import Progress, Silent, ingest_vault
from pyrag.lexical import same_text
from pyrag.models import Retrieval
from pyrag.schemas import ExplainResponse
from pyrag.service import Service, check_question

DEPTH = 20  # chunks retrieved for a question: as many as the product gives at most
MEASURES = ("ndcg@10", "recall@5", "recall@20", "mrr@10")
PAIRED = "ndcg@10"  # the measure that two settings are compared by
_REGRESSIONS = 20  # listed, at most

Note = Callable[[str], None]
Storing = Callable[[], AbstractContextManager[Progress]]  # a view of an ingest run
Asking = Callable[[int], AbstractContextManager[Callable[[], None]]]  # told of each of so many questions
M = TypeVar("M", bound=BaseModel)


class _Entry(BaseModel):
    """A line of corpus.jsonl."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: str = Field(alias="_id", min_length=1)
    title: str | None = None
    text: str


class _Query(BaseModel):
    """A line of queries.jsonl or of an off-topic file."""

    model_config = ConfigDict(frozen=True, strict=True)

    id: str = Field(alias="_id", min_length=1)
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """An entry of the corpus."""

    title: str
    text: str

    @property
    def note(self) -> str:
        """The entry as Markdown. With an empty line in front a rule `---` is not read as frontmatter."""
        return f"# {self.title}\n\n{self.text}\n" if self.title else f"\n{self.text}\n"


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is asked of what: passages by id, questions by id, and how relevant which passage is to which."""

    name: str
    passages: dict[str, Passage]
    answerable: dict[str, str]  # questions with a relevant passage
    qrels: dict[str, dict[str, int]]  # of the answerable questions; scores above 0
    unanswerable: dict[str, str] = field(default_factory=dict)

    def sampled(self, most: int | None) -> Dataset:
        """At most so many questions of each kind, chosen by the hash of their ids, in the same order."""
        if most is None:
            return self
        answerable, unanswerable = _sample(self.answerable, most), _sample(self.unanswerable, most)
        qrels = {key: self.qrels[key] for key in answerable}
        return replace(self, answerable=answerable, unanswerable=unanswerable, qrels=qrels)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the search gave for a question: ids of passages, best first, each once."""

    ranking: list[str]
    confidence: float
    threshold: float
    answered: bool
    milliseconds: float
    reason: str = ""  # of the decision
    calibration: str | None = None  # shipped, calibrated; None: confidence is a similarity


@dataclass(frozen=True, slots=True)
class Refusal:
    """How well the confidence tells answerable questions from others; shares of 1."""

    auroc: float
    wrong_answers: float  # of the unanswerable ones
    wrong_refusals: float  # of the answerable ones
    threshold: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one setting on a data set."""

    dataset: Dataset
    provider: str
    model: str
    retrieval: Retrieval
    documents: int
    replies: dict[str, Reply]  # of both kinds of questions
    scores: dict[str, dict[str, float]]  # measures of each answerable question
    explained: dict[str, ExplainResponse] = field(
        default_factory=dict
    )  # of the worst questions, if asked for

    def worst(self, most: int) -> list[str]:
        """So many questions that went wrong, the worst first.

        Counted are 1 - nDCG@10 and 1 more for a refusal of an answerable question, and for the answer to an
        unanswerable one 0.5 and its confidence.
        """
        badness = {
            key: 1 - score[PAIRED] + (not self.replies[key].answered) for key, score in self.scores.items()
        }
        for key in self.dataset.unanswerable:
            badness[key] = 0.5 + self.replies[key].confidence if self.replies[key].answered else 0.0
        wrong = [key for key, value in badness.items() if value > 0]
        return sorted(wrong, key=lambda key: (-badness[key], key))[:most]

    @property
    def metrics(self) -> dict[str, float]:
        """The means over all answerable questions."""
        return {name: fmean(score[name] for score in self.scores.values()) for name in MEASURES}

    @property
    def latency(self) -> dict[str, float]:
        """Median and 95th percentile (nearest rank) of a search, milliseconds."""
        times = sorted(reply.milliseconds for reply in self.replies.values())
        return {"median": median(times), "p95": times[math.ceil(0.95 * len(times)) - 1]}

    def confidences(self, questions: Iterable[str]) -> list[float]:
        """The confidence of each of these questions."""
        return [self.replies[each].confidence for each in questions]

    @property
    def refusal(self) -> Refusal | None:
        """None without unanswerable questions."""
        if not self.dataset.unanswerable:
            return None
        yes = self.confidences(self.dataset.answerable)
        no = self.confidences(self.dataset.unanswerable)
        return Refusal(
            auroc(yes, no),
            sum(self.replies[each].answered for each in self.dataset.unanswerable) / len(no),
            sum(not self.replies[each].answered for each in self.dataset.answerable) / len(yes),
            median(reply.threshold for reply in self.replies.values()),
        )

    def summary(self) -> dict[str, Any]:
        """The result as `rag eval --beir --json` prints it."""
        refusal = self.refusal
        return {
            "metrics": {name: round(value, 6) for name, value in self.metrics.items()},
            **({"refusal": _rounded(refusal)} if refusal else {}),
            "latency_ms": {name: round(value, 3) for name, value in self.latency.items()},
            "questions": len(self.dataset.answerable),
            "documents": self.documents,
            "provider": self.provider,
            "model": self.model,
            "retrieval": self.retrieval,
            "dataset": self.dataset.name,
        }


@dataclass(frozen=True, slots=True)
class Regression:
    """A question that the second setting answers worse; the first hit of each, None without any."""

    id: str
    question: str
    relevant: list[str]
    first: float
    second: float
    first_hit: str | None
    second_hit: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two settings question by question: nDCG@10 of the second less that of the first."""

    mean_difference: float
    wins: int  # questions where the second is better
    losses: int
    ties: int
    p_value: float
    regressions: list[Regression]  # the worst first

    def summary(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "measure": PAIRED,
            "mean_difference": round(self.mean_difference, 6),
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "p_value": self.p_value,
            "regressions": [
                {
                    "id": each.id,
                    "question": each.question,
                    "relevant": each.relevant,
                    "a": round(each.first, 6),
                    "b": round(each.second, 6),
                    "a_first_hit": each.first_hit,
                    "b_first_hit": each.second_hit,
                }
                for each in self.regressions
            ],
        }


# Reading -------------------------------------------------------------------------------------------


def load_dataset(
    folder: Path, note: Note, *, off_topic: Path | None = None, held_out: bool = False
) -> Dataset:
    """The data set of a BEIR folder, with the unanswerable questions asked for.

    With `held_out` the passages of `heldout.txt` are left out, and questions that have no other relevant one
    are unanswerable. What is left out otherwise is counted in a `note`. Raises `InvalidRequest` naming file,
    line and field.
    """
    corpus, asked = folder / "corpus.jsonl", folder / "queries.jsonl"
    passages = {
        entry.id: Passage(" ".join((entry.title or "").split()), entry.text)
        for _, entry in _lines(corpus, _Entry)
    }
    empty = [key for key, each in passages.items() if not each.text.strip() and not each.title]
    for key in empty:
        del passages[key]
    if empty:
        note(f"{corpus}: {len(empty)} entries without text are left out, the first: {empty[0]}")
    questions = read_questions(asked, note)
    judged = _read_qrels(folder, questions, passages, note)
    gone = _held_out(folder / "heldout.txt", passages, note) if held_out else set()
    qrels: dict[str, dict[str, int]] = {}
    unanswerable: dict[str, str] = {}
    for key, relevant in judged.items():
        left = {each: score for each, score in relevant.items() if each not in gone}
        if left:
            qrels[key] = left
        else:
            unanswerable[key] = questions[key]
    if not qrels:
        raise InvalidRequest(f"{folder} has no question with a relevant document")
    if held_out and not unanswerable:
        raise InvalidRequest(
            f"{folder / 'heldout.txt'} makes no question unanswerable",
            hint="It lists ids of corpus.jsonl, one a line.",
        )
    if off_topic is not None:
        strangers = read_off_topic(off_topic, note, asked, {questions[key]: key for key in qrels})
        # the ids of another set may be the same: a prefix keeps them apart
        unanswerable |= {f"off-topic {key}": text for key, text in strangers.items()}
    return Dataset(
        folder.resolve().name,
        {key: each for key, each in passages.items() if key not in gone},
        {key: questions[key] for key in qrels},
        qrels,
        unanswerable,
    )


def read_off_topic(path: Path, note: Note, asked: Path, answerable: dict[str, str]) -> dict[str, str]:
    """Questions of a jsonl file by id. Raises `InvalidRequest` for one that `asked` says has an answer.

    `answerable` are the ids of those, by question.
    """
    strangers = read_questions(path, note)
    known = {same_text(text): key for text, key in answerable.items()}
    for key, text in strangers.items():
        if other := known.get(same_text(text)):
            raise InvalidRequest(
                f"{path}: question {key} is the same as {other} of {asked}, which has an answer"
            )
    return strangers


def _lines(path: Path, model: type[M]) -> Iterator[tuple[int, M]]:
    """The entries of a jsonl file with their line numbers; each `_id` once, every text really text."""
    seen: dict[str, int] = {}
    for number, line in _text_lines(path):
        try:
            entry = model.model_validate(json.loads(line))
            json.dumps(entry.model_dump(), ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise _bad(path, number, f"not JSON: {error.msg} at column {error.colno}") from None
        except UnicodeEncodeError:
            raise _bad(path, number, "holds half of a surrogate pair, which is not text") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _bad(path, number, f"{f'field {where}: ' if where else ''}{first['msg']}") from None
        except RecursionError:
            raise _bad(path, number, "not JSON: nested too deep") from None
        key = str(getattr(entry, "id"))  # noqa: B009
        if key in seen:
            raise _bad(path, number, f"field _id: {key} stands in line {seen[key]} already")
        seen[key] = number
        yield number, entry
    if not seen:
        raise InvalidRequest(f"{path} holds no entries")


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not blank, with their numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(
            f"{path} cannot be read: {why}",
            hint="A BEIR folder has corpus.jsonl, queries.jsonl and qrels.tsv (or qrels/test.tsv), in UTF-8.",
        ) from None


def _bad(path: Path, line: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"{path}, line {line}: {why}")


def read_questions(path: Path, note: Note) -> dict[str, str]:
    """The questions that can be asked, by id; blank ones are counted in a note."""
    found: dict[str, str] = {}
    blank: list[str] = []
    for number, query in _lines(path, _Query):
        if not query.text.strip():
            blank.append(query.id)
            continue
        try:
            check_question(query.text)
        except InvalidRequest as error:
            raise _bad(path, number, f"field text: {error.message}") from None
        found[query.id] = query.text
    if blank:
        note(f"{path}: {len(blank)} blank questions are left out, the first: {blank[0]}")
    return found


def _read_qrels(
    folder: Path, questions: dict[str, str], passages: dict[str, Passage], note: Note
) -> dict[str, dict[str, int]]:
    """The scores above 0, by question and passage."""
    path = folder / "qrels.tsv"
    if not path.exists() and (folder / "qrels" / "test.tsv").exists():
        path = folder / "qrels" / "test.tsv"
    qrels: dict[str, dict[str, int]] = {}
    unknown: list[tuple[int, str]] = []
    for count, (number, line) in enumerate(_text_lines(path)):
        fields = line.split("\t")
        if len(fields) != 3:
            raise _bad(path, number, f"{len(fields)} fields, expected 3: query-id, corpus-id, score")
        question, passage, text = (each.strip() for each in fields)
        try:
            score = int(text)
        except ValueError:
            if count == 0:  # the header
                continue
            raise _bad(path, number, f"field score: {text!r} is not a whole number") from None
        if question not in questions or passage not in passages:
            unknown.append((number, question if question not in questions else passage))
        elif passage in qrels.setdefault(question, {}):
            raise _bad(path, number, f"field corpus-id: {passage} is judged for {question} already")
        else:
            qrels[question][passage] = score
    if unknown:
        line_number, name = unknown[0]
        note(
            f"{path}: {len(unknown)} lines do not count: their question or document is not there or left out,"
            f" the first in line {line_number}: {name}"
        )
    positive = {
        question: {passage: score for passage, score in judged.items() if score > 0}
        for question, judged in qrels.items()
    }
    return {question: judged for question, judged in positive.items() if judged}


def _held_out(path: Path, passages: dict[str, Passage], note: Note) -> set[str]:
    listed = {line.strip() for _, line in _text_lines(path)}
    if unknown := sorted(listed - passages.keys()):
        note(f"{path}: {len(unknown)} ids are not in corpus.jsonl, the first: {unknown[0]}")
    return listed & passages.keys()


def _sample(questions: dict[str, str], most: int) -> dict[str, str]:
    chosen = sorted(questions, key=lambda key: hashlib.sha256(key.encode()).digest())[:most]
    return {key: text for key, text in questions.items() if key in set(chosen)}


# Asking --------------------------------------------------------------------------------------------


class Corpus:
    """The passages of a data set in a database, as notes with plain numbers as names."""

    def __init__(self, dataset: Dataset, database: Database, vault: Path) -> None:
        self._database = database
        self._vault = vault
        self._ids: dict[str, str] = {}  # by relative path
        self._stored: dict[Index, int] = {}
        # eight digits: no number that a question may hold, such as a year
        for number, (key, passage) in enumerate(dataset.passages.items(), start=1):
            name = f"{number:08}.md"
            (vault / name).write_text(passage.note, encoding="utf-8", newline="\n")
            self._ids[name] = key

    def ingest(self, service: Service, note: Note, storing: Storing) -> int:
        """Stores what the service's embedder needs, unless it is there; the number of documents stored."""
        if service.index not in self._stored:
            with storing() as progress:
                report = ingest_vault(
                    self._vault,
                    self._database,
                    service.embedder,
                    chunks_in_memory=service.settings.ingest_chunks,
                    progress=progress,
                )
            if report.failed:
                path, reason = report.failed[0]
                note(
                    f"{len(report.failed)} documents failed, the first: {self._ids.get(path, path)}: {reason}"
                )
            if len(report.failed) >= len(self._ids):
                raise InvalidRequest("no document could be stored", hint=report.failed[0][1])
            self._stored[service.index] = len(self._ids) - len(report.failed)
        return self._stored[service.index]

    def id_of(self, source: str) -> str:
        """The id of the passage of a note."""
        return self._ids[source]

    def ask(self, service: Service, question: str) -> Reply:
        """One search, timed. A document of several chunks ranks by its best one."""
        begun = time.perf_counter()
        hits, decision = service.find(question, top_k=DEPTH)
        milliseconds = (time.perf_counter() - begun) * 1000
        ranking = list(dict.fromkeys(self._ids[each.source] for each in hits))
        return Reply(
            ranking,
            decision.confidence,
            decision.threshold,
            decision.mode == "rag",
            milliseconds,
            decision.reason,
            decision.calibration,
        )

    def explain(self, service: Service, question: str) -> ExplainResponse:
        """`Service.explain` with the ids of passages as sources."""
        explained = service.explain(question, top_k=DEPTH)
        candidates = [
            each.model_copy(update={"source": self._ids[each.source]}) for each in explained.candidates
        ]
        return explained.model_copy(update={"candidates": candidates})


@contextmanager
def stored_corpus(dataset: Dataset, server: Database) -> Iterator[tuple[Corpus, Database]]:
    """The passages as notes in a temporary folder, and a throw-away database on the server for them."""
    with (
        tempfile.TemporaryDirectory(prefix="pyrag-beir-") as folder,
        server.throwaway() as database,
    ):
        yield Corpus(dataset, database, Path(folder)), database


def measure(
    dataset: Dataset,
    corpus: Corpus,
    service: Service,
    note: Note,
    storing: Storing,
    asking: Asking,
) -> Measured:
    """Stores the corpus for this service if need be and asks all questions."""
    documents = corpus.ingest(service, note, storing)
    questions = dataset.answerable | dataset.unanswerable
    corpus.ask(service, next(iter(questions.values())))  # opens the connection; not counted
    replies = {}
    with asking(len(questions)) as asked:
        for key, question in questions.items():
            replies[key] = corpus.ask(service, question)
            asked()
    return Measured(
        dataset,
        service.index.provider,
        service.index.model,
        service.settings.retrieval,
        documents,
        replies,
        score({key: replies[key].ranking for key in dataset.answerable}, dataset.qrels),
    )


def evaluate_settings(
    dataset: Dataset,
    settings: Sequence[Settings],
    server: Database,
    note: Note,
    storing: Storing = lambda: nullcontext(Silent()),
    asking: Asking = lambda questions: nullcontext(lambda: None),
    explain: int = 0,
) -> list[Measured]:
    """The results of one or more settings on the same stored corpus, with so many of the worst explained.

    `storing` and `asking` show progress.
    """
    results = []
    with stored_corpus(dataset, server) as (corpus, database):
        for chosen in settings:
            service = Service(chosen, database)
            result = measure(dataset, corpus, service, note, storing, asking)
            questions = dataset.answerable | dataset.unanswerable
            explained = {key: corpus.explain(service, questions[key]) for key in result.worst(explain)}
            results.append(replace(result, explained=explained))
    return results


# Figures -------------------------------------------------------------------------------------------


def score(rankings: dict[str, list[str]], qrels: dict[str, dict[str, int]]) -> dict[str, dict[str, float]]:
    """The measures of each question, by ir-measures; positions serve as scores, so that there are no ties."""
    import ir_measures
    from ir_measures import RR, R, nDCG

    names = dict(zip((nDCG @ 10, R @ 5, R @ 20, RR @ 10), MEASURES, strict=True))
    run = {
        question: {passage: -float(position) for position, passage in enumerate(ranking)}
        for question, ranking in rankings.items()
    }
    scores = {question: dict.fromkeys(MEASURES, 0.0) for question in rankings}
    for metric in ir_measures.iter_calc(list(names), {key: qrels[key] for key in rankings}, run):
        scores[metric.query_id][names[metric.measure]] = float(metric.value)
    return scores


def auroc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """How likely one of `higher` is above one of `lower`, a tie counting half.

    The area under the ROC curve as the Mann-Whitney statistic (Hanley and McNeil, Radiology 143, 1982), from
    the sum of ranks, equal values sharing their mean rank.
    """
    values = sorted([(value, 1) for value in higher] + [(value, 0) for value in lower])
    ranks = 0.0
    start = 0
    while start < len(values):
        end = start
        while end < len(values) and values[end][0] == values[start][0]:
            end += 1
        ranks += (start + 1 + end) / 2 * sum(kind for _, kind in values[start:end])
        start = end
    return (ranks - len(higher) * (len(higher) + 1) / 2) / (len(higher) * len(lower))


def sign_test(wins: int, losses: int) -> float:
    """The exact two-sided p-value of the sign test; ties are left out.

    How likely a fair coin falls at least as unevenly (Conover, Practical Nonparametric Statistics, 3.4).
    """
    total = wins + losses
    tail = ways = 1  # to choose none of them, then one, two, …
    for count in range(1, min(wins, losses) + 1):
        ways = ways * (total - count + 1) // count
        tail += ways
    return min(1.0, 2 * tail / (1 << total))


def compare(first: Measured, second: Measured) -> Comparison:
    """The second result against the first, question by question."""
    before = {key: each[PAIRED] for key, each in first.scores.items()}
    after = {key: each[PAIRED] for key, each in second.scores.items()}
    differences = {key: after[key] - before[key] for key in before}
    wins = sum(each > 0 for each in differences.values())
    losses = sum(each < 0 for each in differences.values())
    worse = sorted((each, key) for key, each in differences.items() if each < 0)[:_REGRESSIONS]
    return Comparison(
        fmean(differences.values()),
        wins,
        losses,
        len(differences) - wins - losses,
        sign_test(wins, losses),
        [
            Regression(
                key,
                first.dataset.answerable[key],
                sorted(first.dataset.qrels[key]),
                before[key],
                after[key],
                next(iter(first.replies[key].ranking), None),
                next(iter(second.replies[key].ranking), None),
            )
            for _, key in worse
        ],
    )


def _rounded(refusal: Refusal) -> dict[str, float]:
    return {
        "auroc": round(refusal.auroc, 6),
        "wrong_answers": round(refusal.wrong_answers, 6),
        "wrong_refusals": round(refusal.wrong_refusals, 6),
        "threshold": refusal.threshold,
    }
