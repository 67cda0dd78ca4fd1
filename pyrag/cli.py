"""The command `rag`: reads arguments, calls the layer below, prints. It computes nothing itself."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pyrag import __version__
from pyrag.cli_calibrate import calibrate
from pyrag.cli_common import (
    EXIT_INTERRUPTED,
    AfterOption,
    AllTagsOption,
    FallbackOption,
    JsonOption,
    PathOption,
    TagOption,
    TopKOption,
    VaultOption,
    configuration,
    filter_of,
    note,
    print_citations,
    print_head,
    print_json,
    service_of,
    shown,
)
from pyrag.cli_db import db_app
from pyrag.cli_eval import evaluate
from pyrag.cli_explain import explain, why_not
from pyrag.cli_ingest import chunk, ingest, watch
from pyrag.cli_ledger import forget, runs_app, status, vault_app
from pyrag.errors import PyragError

if TYPE_CHECKING:
    from pyrag.schemas import SearchResult


class _Group(TyperGroup):
    """Prints a `PyragError` as message and hint on stderr, and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PyragError as error:
            note(f"error [{error.code}]: {error.message}")
            for line in error.hint.splitlines():
                note(f"  {line}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            note("interrupted")
            ctx.exit(EXIT_INTERRUPTED)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="pyrag: questions about a Markdown vault, answered with citations from one Postgres.",
    epilog="Example: rag db init && rag ingest samples/acme-vault && rag ask '客户 P1 工单应该怎么升级？'",
)
embeddings_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Embedding models.",
    epilog="Example: rag embeddings warmup",
)
app.command("ingest", epilog="Example: rag ingest ~/notes --dry-run")(ingest)
app.command("watch", epilog="Example: rag watch ~/notes")(watch)
app.command("chunk", epilog="Example: rag chunk 'samples/acme-vault/00-index.md' --json")(chunk)
app.command("status", epilog="Example: rag status --json")(status)
app.add_typer(runs_app, name="runs")
app.command("forget", epilog="Example: rag forget ~/notes/private --yes")(forget)
app.add_typer(vault_app, name="vault")
app.add_typer(db_app, name="db")
app.add_typer(embeddings_app, name="embeddings")
app.command(
    "explain",
    epilog="Example: rag explain 'replication lag'\n\nOr: rag explain 'replication lag' -k 3 --path runbooks",
)(explain)
app.command(
    "why-not",
    epilog="Example: rag why-not 'replication lag' 'Postgres Incident Runbook.md'\n\n"
    "Or: rag why-not 'replication lag' 'postgres incident runbook#Disk almost full'",
)(why_not)
app.command("eval", epilog="Example: rag eval --answers\n\nOr: rag eval --beir FOLDER --sample 200")(evaluate)
app.command(
    "calibrate",
    epilog="Example: rag calibrate my-questions.yaml --held-out --plot calibration.png\n\n"
    "Then: rag calibrate my-questions.yaml --held-out --set",
)(calibrate)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    env_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Read this .env instead of the repository's.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Keeps what all commands need."""
    if version:
        print(f"pyrag {__version__}")
        raise typer.Exit
    ctx.obj = env_file


def main() -> None:
    """Entry point of the console script `rag`."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


# Configuration and models ------------------------------------------------------------------------


@app.command("config", epilog="Example: rag config --json")
def config(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show every setting, where it comes from, and the resolved threshold; never a key or password."""
    loaded = configuration(ctx)
    rows = loaded.summary()
    if as_json:
        print_json({"env_file": str(loaded.env_file) if loaded.env_file else None, "settings": rows})
        return
    print(f"env file: {loaded.env_file or 'none'}")
    for row in rows:
        value = row["value"]
        shown = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        print(f"{row['variable']:<26} {shown:<28} ({row['origin']}) {row['description']}")


@embeddings_app.command("warmup", epilog="Example: EMBEDDING_PROVIDER=fake rag embeddings warmup")
def embeddings_warmup(ctx: typer.Context) -> None:
    """Fetch the embedding model so that later no network is needed.

    The fake provider needs nothing; providers with a model to fetch come with a later version.
    """
    from pyrag.embeddings import build_embedder

    embedder = build_embedder(configuration(ctx).settings)
    print(f"{embedder.model} of provider {embedder.provider} is ready: nothing to download")


# Search and ask -------------------------------------------------------------------------------


@app.command("search", epilog="Example: rag search '客户 P1 工单应该怎么升级？' --top-k 3")
def search(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    top_k: TopKOption = None,
    vault: VaultOption = None,
    path: PathOption = None,
    tag: TagOption = None,
    all_tags: AllTagsOption = False,
    updated_after: AfterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the chunks that fit a question best, best first."""
    wanted = filter_of(vault, path, tag, all_tags, updated_after)
    response = service_of(ctx, query).search(query, top_k, wanted)
    if as_json:
        print_json(response.model_dump())
        return
    print(
        f"confidence {response.confidence:.4f}, {len(response.results)} results,"
        f" retrieval {response.retrieval}, scan {response.scan}"
    )
    for number, result in enumerate(response.results, start=1):
        print(f"\n[{number}] {result.score:.4f}  {shown(result.source)}")
        if result.heading_path:
            print(f"    {shown(' > '.join(result.heading_path))}")
        if response.retrieval != "vector":
            print(f"    {shown(_found_by(result))}")
        print(_excerpt(result.content))


@app.command("ask", epilog="Example: rag ask 'How do I find the query that blocks other sessions?'")
def ask(
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
    """Answer a question from the knowledge base with citations, or say honestly that it holds no answer.

    The answer appears as the model writes it, in strict mode when its quotes are checked. With --json it is
    one document, the body of POST /ask.
    """
    from contextlib import closing

    from pyrag.schemas import AskResponse, RetrievalEvent, TokenEvent

    wanted = filter_of(vault, path, tag, all_tags, updated_after)
    service = service_of(ctx, question)
    if as_json:
        print_json(service.ask(question, top_k, fallback, wanted).model_dump())
        return
    asked = service.retrieve_for(question, top_k, fallback, wanted)
    checked = asked.prompt is not None and asked.prompt.quotes
    begun = False
    try:
        with closing(service.answer(asked, stream=True)) as events:
            for event in events:
                if checked and isinstance(event, AskResponse):
                    print_head(event)  # the mode of the retrieval was not the last word
                    print("\n".join(shown(line) for line in event.answer.replace("\r\n", "\n").split("\n")))
                    print_citations(event)
                elif checked:
                    continue
                elif isinstance(event, RetrievalEvent):
                    print_head(event)
                elif isinstance(event, TokenEvent):
                    begun = True
                    text = event.token.replace("\r\n", "\n")
                    print("\n".join(shown(line) for line in text.split("\n")), end="", flush=True)
                elif isinstance(event, AskResponse):
                    begun = False
                    print()
                    print_citations(event)
    finally:
        if begun:
            print("\n\n[broken off: the text above is not an answer]", flush=True)


@app.command(
    "serve", epilog="Example: rag serve --bind 127.0.0.1:8000\n\nThen: curl -sS localhost:8000/health"
)
def serve(
    ctx: typer.Context,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen; default 127.0.0.1:8000; may be repeated."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 2,
    threads: Annotated[
        int, typer.Option(min=2, max=1000, help="Threads in each; an answer being written holds one.")
    ] = 256,
) -> None:
    """Serve the HTTP API for agents with gunicorn: /search, /ask, /ask/stream, /explain, /docs.

    One in eight threads stays free for short requests; answers beyond that get 503. There is no
    authentication: listen on other addresses only behind a proxy that has one (docs/operations.md).
    """
    from pyrag.service import open_database

    loaded = configuration(ctx)
    open_database(loaded.settings, note)  # starts the embedded server, once for all workers
    environment = {
        **os.environ,
        "PYRAG_ANSWERS": str(threads - max(1, threads // 8)),
        "PYRAG_LOG_FORMAT": loaded.settings.log_format,
    }
    if ctx.obj is not None:
        environment["PYRAG_ENV_FILE"] = str(ctx.obj)
    arguments = [
        "--config",
        "python:pyrag.gunicorn_conf",
        "--workers",
        str(workers),
        "--threads",
        str(threads),
    ]
    for address in bind or []:
        arguments += ["--bind", address]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "gunicorn", *arguments], environment)


def _found_by(result: SearchResult) -> str:
    """Which legs found a chunk, at which place, and by which words."""
    legs = []
    if result.lexical_rank is not None:
        words = ", ".join(result.matched_terms or [])
        legs.append(f"by words at {result.lexical_rank} (coverage {result.coverage:.2f}): {words}")
    if result.vector_rank is not None:
        legs.append(f"by vectors at {result.vector_rank}")
    return "; ".join(legs)


def _excerpt(content: str, lines: int = 6) -> str:
    rows = [row for row in content.split("\n") if row.strip()]
    return "\n".join(f"    {shown(row)}" for row in rows[:lines] + (["…"] if len(rows) > lines else []))
