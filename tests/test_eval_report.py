"""The report of an evaluation: one well-formed page, safe whatever notes are called, each miss explained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from pyrag.beir import PAIRED, Dataset, Measured, Passage, Reply
from pyrag.errors import InvalidRequest
from pyrag.eval_report import Cell, _lang, _table, check_report, report_retrieval
from pyrag.eval_svg import histogram, html_text
from pyrag.ingest import ingest_vault
from pyrag.service import Service

Rag = Callable[..., CompletedProcess[str]]

NOTE = '<img src=http:x onerror=alert(1)> & "q".md'
EMPTY = {"meta", "br", "hr", "img", "link", "input"}
DRAWN = {"rect", "path"}


class Page(HTMLParser):
    """A parsed page: its tags, the texts of some elements, and whether every element is closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.articles: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "article":
            self.articles.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in DRAWN
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "article" in self.open:
            self.articles[-1] += data

    def check_safe(self) -> None:
        """Nothing runs and nothing is fetched."""
        names = {tag for tag, _ in self.tags}
        assert not names & {"script", "img", "link", "iframe", "object", "a", "base", "form", "image", "use"}
        for _, attributes in self.tags:
            for name in attributes:
                assert not name.startswith("on")
                assert name not in ("src", "href", "xlink:href", "style")
        policy = next(a for tag, a in self.tags if tag == "meta" and a.get("http-equiv"))
        assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.fixture
def indexed(service: Service, tmp_path: Path) -> Service:
    """An index of three notes, one of them with a name that is HTML."""
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / NOTE).write_text("# <script>alert(2)</script>\n\nThe pump is greased with blue grease.\n")
    (vault / "valve.md").write_text("The valve opens at ninety degrees.\n")
    (vault / "数据.md").write_text("重置数据库密码需要管理员批准。\n", encoding="utf-8")
    ingest_vault(vault, service.database, service.embedder, chunks_in_memory=100)
    return service


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    entries = [
        ("pump", "When is the <b>pump</b> greased with blue grease?", "rag", [NOTE]),
        ("db", "重置数据库密码需要谁批准？", "rag", ["数据.md"]),
        ("wrong", "At how many degrees does the valve open?", "no_answer", []),
        ("other", "Who painted the ceiling?", "no_answer", []),
    ]
    path = tmp_path / "questions.yaml"
    fields = ("id", "question", "expected_mode", "expected_sources")
    path.write_text(yaml.safe_dump([dict(zip(fields, each, strict=True)) for each in entries]))
    return path


def test_questions_misses_and_settings_are_on_one_safe_page(
    indexed: Service, rag: Rag, questions: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "report"
    done = rag("eval", "--questions", str(questions), "--report", str(folder), "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["misses"] == 1
    assert [each.name for each in folder.iterdir()] == ["report.html"]
    page = Page(folder / "report.html")
    page.check_safe()
    assert NOTE in page.text
    assert "<b>pump</b>" in page.text
    for said in ("fake fake-lexical-v1", "shipped, fitted on", "3 documents, 3 chunks", "3 (75.0%)", "0.50"):
        assert said in page.text
    (miss,) = page.articles
    explained = indexed.explain("At how many degrees does the valve open?")
    assert explained.summary in miss
    assert "expected no_answer, no source; got rag, valve.md" in miss
    for each in explained.candidates:
        assert each.source in miss
        assert each.reason in miss
    assert ("td", {"data-label": "question", "lang": "zh"}) in page.tags
    assert ("html", {"lang": "en"}) in page.tags
    assert sum(tag == "svg" for tag, _ in page.tags) == 1


def test_without_misses_that_is_said(indexed: Service, rag: Rag, questions: Path, tmp_path: Path) -> None:
    entries = [each for each in yaml.safe_load(questions.read_text()) if each["id"] != "wrong"]
    questions.write_text(yaml.safe_dump(entries))
    done = rag("eval", "--questions", str(questions), "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "report.html")
    assert page.articles == []
    assert "None: every question came out right." in page.text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of three passages."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    texts = {
        "<i>a": "The pump is greased.",
        "b": "The valve opens at ninety degrees.",
        "c": "Red green yellow.",
        "d": "Red green yellow and purple.",
    }
    asked = {"q1": "When is the pump greased?", "q2": "red green yellow", "q3": "Where is <u>the valve</u>?"}
    judged = {"q1": "<i>a", "q2": "d", "q3": "b"}
    (folder / "corpus.jsonl").write_text(
        "".join(f"{json.dumps({'_id': k, 'title': '', 'text': t})}\n" for k, t in texts.items())
    )
    (folder / "queries.jsonl").write_text(
        "".join(f"{json.dumps({'_id': k, 'text': t})}\n" for k, t in asked.items())
    )
    (folder / "qrels.tsv").write_text("".join(f"{q}\t{p}\t1\n" for q, p in judged.items()))
    return folder


def test_a_retrieval_set_has_its_report_with_ids_of_passages(rag: Rag, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "kept.txt"
    other.write_text("mine")
    (tmp_path / "report.html").write_text("old")
    done = rag("eval", "--beir", str(folder), "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert other.read_text() == "mine"
    page = Page(tmp_path / "report.html")
    page.check_safe()
    assert "Retrieval on tiny" in page.text
    assert "<i>a" in page.text
    assert "<u>the valve</u>" in page.text
    miss = next(each for each in page.articles if "red green yellow" in each)
    assert "found at 2; relevant: d" in miss
    assert ".md" not in miss


def test_two_settings_are_on_one_page(rag: Rag, folder: Path, tmp_path: Path) -> None:
    settings = ("RAG_RETRIEVAL=vector,RAG_MIN_SIMILARITY=0.9", "RAG_RETRIEVAL=lexical")
    done = rag("eval", "--beir", str(folder), "--compare", *settings, "--report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "report.html")
    page.check_safe()
    for name in settings:
        assert f"Questions: {name}" in page.text
        assert f"Misses: {name}" in page.text
    assert "sign test p" in page.text
    assert "wrong refusal" in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 3


def result(scores: dict[str, float], refused: set[str], answered: dict[str, float]) -> Measured:
    """A result without a database: nDCG of answerable questions, confidences of others that were answered."""
    dataset = Dataset(
        "<made>", {"d": Passage("", "x")}, {k: k for k in scores}, {k: {"d": 1} for k in scores}
    )
    dataset.unanswerable.update({key: key for key in answered})
    replies = {key: Reply(["d"], 0.6, 0.5, key not in refused, 1.0) for key in scores}
    replies |= {key: Reply(["d"], value, 0.5, value >= 0.5, 1.0) for key, value in answered.items()}
    measures = {
        key: {"ndcg@10": value, "recall@5": 1.0, "recall@20": 1.0, "mrr@10": 1.0}
        for key, value in scores.items()
    }
    return Measured(dataset, "fake", "m", "lexical", 1, replies, measures)


def test_the_worst_questions_come_first_and_right_ones_never() -> None:
    assert PAIRED == "ndcg@10"
    made = result({"good": 1.0, "half": 0.5, "lost": 0.0, "refused": 1.0, "both": 0.0}, {"refused", "both"},
                  {"sure": 0.9, "low": 0.1})  # fmt: skip
    assert made.worst(10) == ["both", "sure", "lost", "refused", "half"]
    assert made.worst(2) == ["both", "sure"]


def test_a_result_without_explained_misses_has_a_page(tmp_path: Path) -> None:
    path = report_retrieval(tmp_path, [], [("x" * 80, result({"q": 1.0}, set(), {"n": 0.2}))])
    page = Page(path)
    page.check_safe()
    assert "<made>" in page.text


def test_bars_of_two_kinds_stand_side_by_side() -> None:
    drawn = histogram({"one": [0.42, 0.44], "two": [0.43]}, 0.5)
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    bars = [bar for bar in bars if bar[2] != "11"]
    assert [name for name, _, _ in bars] == ["first", "second"]
    (_, left, width), (_, right, _) = bars
    assert float(left) + float(width) <= float(right) + 0.1


def test_nothing_from_a_file_steers_the_terminal(service: Service, rag: Rag, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "va\alve\n\u202e.md").write_text("The valve opens at ninety degrees.\n")
    ingest_vault(vault, service.database, service.embedder, chunks_in_memory=100)
    fields = {"question": "At how many \u202edegrees\x1b[31m does the valve open?", "expected_mode": "rag"}
    entry = {"id": "b\alack\u2067", **fields, "expected_sources": ["o\x1bther.md"]}
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump([entry]))
    for options in ((), ("--answers",)):
        done = rag("eval", "--questions", str(path), *options)
        assert done.returncode == 1, done.stderr
        assert not re.search("[\a\x1b\u202a-\u202e\u2066-\u2069]", done.stdout + done.stderr)
        assert r"va\x07lve\n\u202e.md" in done.stdout
        assert r"\u202edegrees\x1b[31m" in done.stdout
        assert r"o\x1bther.md" in done.stdout


# Small parts ---------------------------------------------------------------------------------------


def test_text_is_only_text() -> None:
    assert html_text("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
    assert html_text("a\0b\x1b[31m\udc80") == "a\ufffdb\ufffd[31m\ufffd"
    assert html_text("a\u202eb\u2066c") == "a\\u202eb\\u2066c"
    assert 'data-label="&quot;&gt;"' in _table(['">'], [[Cell("x", True)]])


@pytest.mark.parametrize(
    ("text", "language"),
    [("工单 P1", "zh"), ("カタカナと漢字", "ja"), ("한국어", "ko"), ("Größe", None), ("plain", None)],
)
def test_chinese_japanese_and_korean_texts_say_so(text: str, language: str | None) -> None:
    assert _lang(text) == (f' lang="{language}"' if language else "")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_asked(
    rag: Rag, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InvalidRequest, match="--report"):
        check_report(file)
    (tmp_path / "report.html").mkdir()
    done = rag("eval", "--report", str(tmp_path), DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 2
    assert "report.html cannot be written there" in done.stderr
