"""The command as a process: output, exit codes, and an error for everything that can be wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psycopg
import pytest
from conftest import SAMPLE_VAULT, as_ordinary_user, embedded_home

from pyrag.embedded import EmbeddedServer
from pyrag.errors import InvalidRequest
from pyrag.vault import resolve_vault, scan_vault

Rag = Callable[..., CompletedProcess[str]]
COMMANDS = [
    ("db", "init"),
    ("db", "start"),
    ("db", "stop"),
    ("db", "status"),
    ("db", "psql"),
    ("db", "index"),
    ("db", "index", "create"),
    ("db", "index", "status"),
    ("db", "index", "drop"),
    ("config",),
    ("embeddings", "warmup"),
    ("ingest",),
    ("watch",),
    ("chunk",),
    ("status",),
    ("runs",),
    ("runs", "show"),
    ("forget",),
    ("vault", "move"),
    ("serve",),
    ("search",),
    ("ask",),
    ("eval",),
    ("explain",),
    ("why-not",),
    ("db",),
    ("embeddings",),
    (),
]


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "pump.md").write_text("# Pump\n\nThe pump is greased on Monday.\n", encoding="utf-8")
    return folder


@pytest.fixture
def indexed(rag: Rag, vault: Path) -> Rag:
    done = rag("ingest", str(vault))
    assert done.returncode == 0, done.stderr
    return rag


def assert_error(done: CompletedProcess[str], exit_code: int, code: str, *words: str) -> None:
    """An error of this code on stderr, nothing on stdout, no traceback."""
    assert done.returncode == exit_code, done.stderr
    assert f"error [{code}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_shows_an_example(rag: Rag, command: tuple[str, ...]) -> None:
    done = rag(*command, "--help")
    assert done.returncode == 0
    assert "Example:" in done.stdout
    assert "rag" in done.stdout


def test_help_lists_the_commands(rag: Rag) -> None:
    done = rag("--help")
    for command in {command[0] for command in COMMANDS if command}:
        assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE)


def test_the_version_is_printed(rag: Rag) -> None:
    assert re.fullmatch(r"pyrag \d+\.\d+\.\d+\S*\n", rag("--version").stdout)


def test_ask_prints_mode_answer_citations_and_confidence(indexed: Rag) -> None:
    done = indexed("ask", "When is the pump greased?")
    assert done.returncode == 0
    assert re.search(
        r"mode: rag   confidence: [01]\.\d{4}   threshold: 0\.50   retrieval: lexical   scan: exact\n"
        r"why: confidence [01]\.\d{6} is not below the threshold 0\.500000\n\n",
        done.stdout,
    )
    assert "- The pump is greased on Monday. [1]" in done.stdout
    assert re.search(r"^\[1\] 0\.\d{4}  pump\.md$", done.stdout, re.MULTILINE)


def test_ask_json_is_the_http_body(indexed: Rag) -> None:
    body = json.loads(indexed("ask", "When is the pump greased?", "--json").stdout)
    assert list(body) == [
        "mode", "confidence", "threshold", "retrieval", "scan", "decision", "answer", "citations", "grounded",
        "reason", "complete", "removed_citations", "unverified_citations", "failed_quotes",
    ]  # fmt: skip
    assert list(body["citations"][0]) == ["source", "heading", "score", "cited", "quotes"]


def test_search_json_is_the_http_body(indexed: Rag) -> None:
    body = json.loads(indexed("search", "pump", "--json").stdout)
    assert list(body) == ["confidence", "threshold", "retrieval", "scan", "results"]
    assert (body["threshold"], body["retrieval"]) == (0.5, "lexical")
    assert body["scan"] == "exact"
    assert list(body["results"][0]) == [
        "content", "source", "relative_path", "vault", "heading_path", "heading", "score",
        "vector_rank", "lexical_rank", "lexical_score", "coverage", "matched_terms",
    ]  # fmt: skip
    assert body["results"][0]["source"] == body["results"][0]["relative_path"] == "pump.md"


def test_a_no_answer_is_done_and_not_an_error(indexed: Rag) -> None:
    done = indexed("ask", "Mona Lisa painter")
    assert done.returncode == 0
    assert "mode: no_answer" in done.stdout


@pytest.mark.parametrize(
    "question",
    [
        "'pump' \"greased\"",
        "pump 🎉 greased",
        "pump\ngreased\r\nMonday",
        "pump " * 20_000,
        "-pump",
        "pump; drop table",
    ],
    ids=["quotes", "emoji", "new lines", "100 kB", "dash", "sql"],
)
def test_any_question_is_handled(indexed: Rag, question: str) -> None:
    done = indexed("ask", "--json", "--", question)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mode"] in ("rag", "no_answer")


def test_a_question_that_is_not_utf8_is_refused(indexed: Rag) -> None:
    assert_error(indexed("ask", os.fsdecode(b"pump \xff")), 2, "invalid_request", "U+DCFF")


@pytest.mark.parametrize("command", ["search", "ask"])
def test_an_empty_question_is_refused(rag: Rag, command: str) -> None:
    assert_error(rag(command, " "), 2, "invalid_request", "question is empty")


@pytest.mark.parametrize(
    "arguments",
    [
        ("bogus",),
        ("search",),
        ("ask", "q", "--bogus"),
        ("search", "q", "--top-k", "21"),
        ("search", "q", "--top-k", "x"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(rag: Rag, arguments: tuple[str, ...]) -> None:
    done = rag(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error" in done.stderr


def test_ingest_prints_a_summary(rag: Rag, vault: Path) -> None:
    done = rag("ingest", str(vault))
    assert "1 added" in done.stdout
    assert "chunks: 1 written; embeddings: 1 computed, 0 reused" in done.stdout


def test_ingest_json_is_the_row_of_the_run(rag: Rag, vault: Path, connection: Any) -> None:
    row = json.loads(rag("ingest", str(vault), "--json").stdout)
    columns = connection.execute(
        "select a.attname from pg_attribute as a where a.attrelid = 'rag.ingest_runs'::regclass"
        " and a.attnum > 0 order by a.attnum"
    ).fetchall()
    assert list(row) == [*(name for (name,) in columns), "deletions_withheld", "failures"]
    assert (row["status"], row["documents_added"]) == ("success", 1)


def test_ingest_takes_vault_path_without_an_argument(rag: Rag, vault: Path) -> None:
    assert rag("ingest", VAULT_PATH=str(vault)).returncode == 0
    assert_error(rag("ingest"), 2, "invalid_request", "no vault given", "VAULT_PATH")


@pytest.mark.parametrize("kind", ["missing", "empty string", "file", "no notes"])
def test_a_path_that_is_no_vault_is_refused(rag: Rag, tmp_path: Path, kind: str, connection: Any) -> None:
    (tmp_path / "file.md").write_text("x", encoding="utf-8")
    (tmp_path / "no-notes").mkdir()
    path = {
        "missing": str(tmp_path / "nowhere"),
        "empty string": "",
        "file": str(tmp_path / "file.md"),
        "no notes": str(tmp_path / "no-notes"),
    }[kind]
    assert_error(rag("ingest", path), 2, "invalid_request", path)
    assert connection.execute("select count(*) from rag.documents").fetchone() == (0,)


def test_a_vault_without_permission_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        vault = Path(name) / "secret"
        vault.mkdir(mode=0o000)
        with as_ordinary_user(), pytest.raises(InvalidRequest, match=f"'{vault}' may not be read"):
            scan_vault(resolve_vault(vault))
        vault.chmod(0o700)


def test_a_bad_file_is_named_and_exit_code_3(rag: Rag, vault: Path) -> None:
    (vault / "bad.md").write_bytes(b"40\xb0C\n")
    done = rag("ingest", str(vault))
    assert done.returncode == 3
    assert re.search(r"^failed: bad\.md: .*UTF-8", done.stderr, re.MULTILINE)
    assert "1 added" in done.stdout


def test_withheld_deletions_are_exit_code_4_and_can_be_allowed(indexed: Rag, vault: Path) -> None:
    (vault / "pump.md").unlink()
    done = indexed("ingest", str(vault))
    assert done.returncode == 4
    assert "--allow-mass-delete" in done.stderr
    assert indexed("search", "pump").returncode == 0
    assert indexed("ingest", str(vault), "--allow-mass-delete").returncode == 0
    assert_error(indexed("search", "pump"), 1, "retrieval_not_ready")


def test_a_busy_vault_is_exit_code_5(rag: Rag, vault: Path, connection: Any) -> None:
    connection.execute("select rag.begin_run(%s, 'fake', 'fake-lexical-v1', 1024)", [str(vault)])
    assert_error(rag("ingest", str(vault)), 5, "vault_busy", "is at work")


def start_long_ingest(url: str, vault: Path) -> subprocess.Popen[str]:
    """A process that ingests 1,000 notes, past its first stored document."""
    for number in range(1000):
        (vault / f"n{number}.md").write_text(f"# N{number}\n\nText {number}.\n" * 20, encoding="utf-8")
    # a shell that runs in the background hands on an ignored Ctrl-C
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code} from pyrag.cli import main; main()", "ingest", str(vault)],
        env={**os.environ, "DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + 30
        while connection.execute("select count(*) from rag.documents").fetchone() == (0,):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_run_is_closed_and_exit_code_130(
    url: str, vault: Path, connection: Any, number: signal.Signals
) -> None:
    process = start_long_ingest(url, vault)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    row = connection.execute("select r.status, r.error_summary from rag.ingest_runs as r").fetchone()
    assert row == ("failed", "interrupted")


def test_a_killed_run_loses_nothing_that_was_stored(url: str, vault: Path, rag: Rag, connection: Any) -> None:
    process = start_long_ingest(url, vault)
    process.kill()
    process.communicate()
    stored = connection.execute("select count(*) from rag.documents").fetchone()[0]
    torn = connection.execute(
        "select count(*) from rag.chunks as c left join rag.embeddings as e on e.chunk_id = c.id"
        " where e.id is null"
    ).fetchone()
    assert torn == (0,)
    done = rag("ingest", str(vault), "--json")
    run = json.loads(done.stdout)
    assert run["documents_skipped"] >= stored > 0
    assert run["documents_added"] + run["documents_skipped"] == 1001
    closed = connection.execute(
        "select r.status, r.error_summary from rag.ingest_runs as r order by r.id"
    ).fetchall()
    assert closed == [("failed", "interrupted"), ("success", None)]


def test_a_database_without_schema_is_named(rag: Rag, empty_url: str, vault: Path) -> None:
    for arguments in (("ingest", str(vault)), ("search", "x"), ("ask", "x"), ("eval",)):
        done = rag(*arguments, DATABASE_URL=empty_url)
        assert_error(done, 1, "schema_not_initialized", "rag db init")
    assert rag("db", "init", DATABASE_URL=empty_url).returncode == 0
    assert_error(rag("search", "x", DATABASE_URL=empty_url), 1, "retrieval_not_ready", "rag ingest")


def test_a_server_that_is_down_offers_both_ways_out(rag: Rag) -> None:
    done = rag("search", "x", DATABASE_URL="postgresql://u:secret@127.0.0.1:1/x")
    assert_error(done, 1, "database_unavailable", "docker compose up -d postgres", "remove DATABASE_URL")
    assert "secret" not in done.stderr


def test_wrong_settings_are_exit_code_2(rag: Rag) -> None:
    assert_error(rag("config", RAG_TOP_K="0"), 2, "invalid_configuration", "RAG_TOP_K=0")
    assert_error(rag("--env-file", "/nowhere", "config"), 2, "invalid_configuration", "/nowhere")


def test_config_shows_the_threshold_and_no_secret(rag: Rag) -> None:
    secret = "sk-test-0123456789abcdef"
    done = rag("config", LLM_API_KEY=secret, DATABASE_URL=f"postgresql://u:{secret}@h/x")
    assert secret not in done.stdout + done.stderr
    assert re.search(r"LLM_API_KEY +present", done.stdout)
    assert re.search(r"resolved threshold +0\.5 +\(default\)", done.stdout)
    assert re.search(r"resolved min similarity +0\.2 +\(provider\)", done.stdout)
    body = json.loads(rag("config", "--json", LLM_API_KEY=secret).stdout)
    assert secret not in json.dumps(body)


def test_eval_fails_on_a_miss(indexed: Rag, tmp_path: Path) -> None:
    entry = "- {id: a, question: 'When is the pump greased?', expected_mode: rag, expected_sources: [%s]}\n"
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(entry % "pump.md", encoding="utf-8")
    wrong.write_text(entry % "other.md", encoding="utf-8")
    assert indexed("eval", "--questions", str(right)).returncode == 0
    done = indexed("eval", "--questions", str(wrong))
    assert done.returncode == 1
    assert "WRONG" in done.stdout
    assert "expected rag other.md" in done.stdout


def test_warmup_of_the_fake_provider_has_nothing_to_do(rag: Rag) -> None:
    assert "nothing to download" in rag("embeddings", "warmup").stdout
    done = rag("embeddings", "warmup", EMBEDDING_PROVIDER="local-qwen3")
    assert_error(done, 2, "invalid_configuration", "not built in this version")


def test_a_closed_pipe_is_no_traceback(indexed: Rag, url: str) -> None:
    command = f"{sys.executable} -c 'from pyrag.cli import main; main()' search pump | true"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "DATABASE_URL": url},
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_psql_hands_its_arguments_on(indexed: Rag) -> None:
    done = indexed("db", "psql", "-Atc", "select d.relative_path from rag.documents as d")
    assert done.stdout == "pump.md\n", done.stderr
    assert indexed("db", "psql", "-Atc", "select 1/0").returncode == 1


def test_the_embedded_server_serves_the_whole_path(rag: Rag) -> None:
    with embedded_home() as folder:
        home = str(folder / "home of the data")

        def run(*arguments: str) -> CompletedProcess[str]:
            return rag(*arguments, DATABASE_URL="", PYRAG_HOME=home)

        assert json.loads(run("db", "status", "--json").stdout)["running"] is False
        first = run("db", "init")
        assert first.returncode == 0, first.stderr
        assert "Setting up the embedded Postgres" in first.stderr
        assert run("ingest", str(SAMPLE_VAULT)).returncode == 0
        assert run("eval").returncode == 0
        status = json.loads(run("db", "status", "--json").stdout)
        assert status["running"] is True
        with psycopg.connect(status["url"]) as connection:
            assert connection.execute("select count(*) from rag.documents").fetchone() == (9,)
        assert run("db", "psql", "-Atc", "select count(*) from rag.documents").stdout == "9\n"
        assert run("db", "stop").stdout == "stopped\n"
        assert run("db", "stop").stdout == "was not running\n"
        assert run("search", "P1").returncode == 0, "the server starts by itself and has kept its data"
        EmbeddedServer(Path(home)).stop()


def test_managing_the_embedded_server_is_refused_when_another_is_set(rag: Rag) -> None:
    for command in ("start", "stop"):
        assert_error(rag("db", command), 2, "invalid_configuration", "DATABASE_URL is set")


def test_status_says_whether_the_database_answers(rag: Rag, url: str) -> None:
    assert json.loads(rag("db", "status", "--json").stdout) == {
        "embedded": False,
        "running": True,
        "url": url,
    }
    down = rag("db", "status", DATABASE_URL="postgresql://u:secret@127.0.0.1:1/x")
    assert re.search(r"running: +False", down.stdout)
    assert "secret" not in down.stdout


def test_psql_of_a_server_that_is_down_offers_both_ways_out(rag: Rag) -> None:
    done = rag("db", "psql", "-c", "select 1", DATABASE_URL="postgresql://u:secret@127.0.0.1:1/x")
    assert_error(done, 1, "database_unavailable", "docker compose up -d postgres", "remove DATABASE_URL")


def test_a_wrong_name_in_database_url_is_not_a_server_that_is_down(rag: Rag, url: str) -> None:
    done = rag("search", "x", DATABASE_URL=re.sub(r"/pyrag_\w+_test", "/no_such_test", url))
    assert_error(done, 1, "database_unavailable", "does not exist", "Correct user, password or name")


def test_control_characters_of_notes_and_names_do_not_reach_the_terminal(rag: Rag, vault: Path) -> None:
    (vault / "esc\x1b[2J\nname.md").write_text("# Bell\x07\n\nThe bell \x1b]0;pwned\x07 rings.\n", "utf-8")
    assert rag("ingest", str(vault)).returncode == 0
    for command in ("search", "ask"):
        out = rag(command, "bell rings").stdout
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "esc\\x1b[2J\\nname.md" in out


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path, url: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from pyrag.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "config"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert_error(done, 2, "invalid_configuration", "does not exist any more")


def test_chunk_shows_a_note_as_ingest_stores_it(indexed: Rag, vault: Path, connection: Any) -> None:
    (vault / "note.md").write_text(
        "---\ntags: [a]\ndate: 2026-01-02\n---\n# Pump\n\n## One\n\nSee [[Valve]] #b.\n\n## Two\n\nEnd.\n",
        "utf-8",
    )
    assert indexed("ingest", str(vault)).returncode == 0
    form = json.loads(indexed("chunk", str(vault / "note.md"), "--json").stdout)
    assert list(form) == ["document", "chunks"]
    for table, rows in (("documents", [form["document"]]), ("chunks", form["chunks"])):
        names = list(rows[0])
        stored = connection.execute(
            f"select {', '.join('t.' + name for name in names)} from rag.{table} as t"
            " where t.relative_path = 'note.md'" + (" order by t.chunk_index" if table == "chunks" else "")
        ).fetchall()
        assert [dict(zip(names, row, strict=True)) for row in stored] == rows
    text = indexed("chunk", str(vault / "note.md")).stdout
    assert "--- chunk 0" in text
    assert "wikilinks: Valve" in text
    assert_error(indexed("chunk", str(vault / "none.md")), 2, "invalid_request", "none.md cannot be read")
    (vault / "gb.md").write_bytes("泵".encode("gb18030"))
    assert_error(indexed("chunk", str(vault / "gb.md")), 2, "invalid_request", "not UTF-8")
    assert "泵" in indexed("chunk", str(vault / "gb.md"), "--encoding", "gb18030").stdout
