"""What all commands use: configuration, service, notes on stderr, JSON, text that cannot steer a terminal."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrag.errors import InvalidRequest
from pyrag.redaction import BIDI_CONTROLS

if TYPE_CHECKING:
    from pyrag.config import Configuration
    from pyrag.schemas import AskResponse, Filter, RetrievalEvent
    from pyrag.service import Service

EXIT_USAGE = 2
EXIT_FAILED_FILES = 3
EXIT_WITHHELD = 4
EXIT_INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
TopKOption = Annotated[
    int | None,
    typer.Option("--top-k", "-k", min=1, max=20, help="Chunks to retrieve; default RAG_TOP_K (5)."),
]
VaultOption = Annotated[str | None, typer.Option("--vault", metavar="PATH", help="Only notes of this vault.")]
PathOption = Annotated[
    str | None, typer.Option("--path", metavar="PREFIX", help="Only this folder or note below the vault.")
]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", help="Only chunks with this tag; of several, any.")
]
AllTagsOption = Annotated[bool, typer.Option("--all-tags", help="Of several --tag, all.")]
AfterOption = Annotated[
    str | None,
    typer.Option("--updated-after", metavar="TIME", help="Only what changed in the index after this time."),
]
FallbackOption = Annotated[
    bool, typer.Option("--fallback", help="Allow general knowledge if RAG_FALLBACK_ENABLED=true.")
]


def configuration(ctx: typer.Context, **options: str | None) -> Configuration:
    """The configuration of this call, options laid over the environment; its warnings go to stderr."""
    from pyrag.config import load_configuration

    given = {variable: value for variable, value in options.items() if value is not None}
    loaded = load_configuration(ctx.obj, {**os.environ, **given})
    for warning in loaded.warnings:
        note(f"warning: {warning}")
    return loaded


def service_of(ctx: typer.Context, question: str | None = None) -> Service:
    """The service of this call's configuration; a question is checked before any database is opened."""
    from pyrag.service import Service, check_question, open_database

    if question is not None:
        check_question(question)
    settings = configuration(ctx).settings
    return Service(settings, open_database(settings, note))


def note(text: str) -> None:
    """A line on stderr: progress, warnings, errors."""
    print(text, file=sys.stderr, flush=True)


def note_shown(text: str) -> None:
    """A line on stderr that names what stands in a file."""
    note(shown(text))


def print_json(value: Any) -> None:
    """A document on stdout."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def shown(text: str) -> str:
    """A text from a note or file name on one line: it cannot steer a terminal or turn its direction round."""
    return "".join(
        char if char == "\t" or char.isprintable()
        or (unicodedata.category(char) not in ("Cc", "Zl", "Zp") and char not in BIDI_CONTROLS)
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )  # fmt: skip


def given_path(path: str) -> Path:
    """The path of an argument, `~` expanded; an empty one is none, least of all the current folder."""
    why = "is empty"
    if path.strip():
        try:
            path.encode()
            return Path(path).expanduser()
        except UnicodeEncodeError:
            why = "is not valid UTF-8"
        except RuntimeError as error:  # an unknown ~user
            why = str(error)
    name = path.encode("utf-8", "backslashreplace").decode()
    raise InvalidRequest(f"path {name!r} {why}", hint="Name a vault, or a folder or note in one.")


def filter_of(
    vault: str | None, path: str | None, tags: list[str] | None, all_tags: bool, updated_after: str | None
) -> Filter | None:
    """The filter of the options, None without any. Raises `InvalidRequest` naming the option."""
    from pydantic import ValidationError

    from pyrag.schemas import Filter

    given: dict[str, Any] = {
        "vault": None if vault is None else str(given_path(vault).resolve()),
        "path_prefix": path,
        "tags": {"all" if all_tags else "any": tags} if tags else None,
        "updated_after": updated_after,
    }
    if all(value is None for value in given.values()):
        return None
    try:
        return Filter.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"path_prefix": "path", "tags": "tag"}.get(str(first["loc"][0]), str(first["loc"][0]))
        why = first["msg"]
        if first["type"] == "string_pattern_mismatch":
            why = "must hold at least one visible character"
        raise InvalidRequest(
            f"--{option.replace('_', '-')}: {why}",
            hint="Example: --path runbooks --tag p1 --updated-after 2026-01-31T00:00:00Z",
        ) from None


def print_head(reply: RetrievalEvent | AskResponse) -> None:
    """The first lines of a reply: mode, confidence, threshold, retrieval, scan, and why."""
    print(
        f"mode: {reply.mode}   confidence: {reply.confidence:.4f}   threshold: {reply.threshold:.2f}"
        f"   retrieval: {reply.retrieval}   scan: {reply.scan}\nwhy: {reply.decision.reason}\n"
    )


def print_citations(response: AskResponse) -> None:
    """The citations of an answer, after what is to be said about it on stderr."""
    if response.mode == "rag" and response.reason:
        note(f"warning: {'not grounded' if not response.grounded else 'not complete'}: {response.reason}")
    unverified = response.unverified_citations or 0
    if response.removed_citations > unverified:
        unreal = response.removed_citations - unverified
        note(f"warning: removed citations of sources that do not exist: {unreal}")
    if unverified and response.mode == "rag":
        note(f"warning: removed citations that no quote supports: {unverified}")
    if response.citations:
        print("\ncitations:")
    for number, citation in enumerate(response.citations, start=1):
        print(f"[{number}] {citation.score:.4f}  {shown(citation.source)}")
        if citation.heading:
            print(f"    {shown(citation.heading)}")
        for quote in citation.quotes or []:
            if quote.verdict == "supported":
                print(f"    supported: {_in_marks(quote.quote)}")
    unused = [number for number, each in enumerate(response.citations, start=1) if not each.cited]
    if unused and response.mode == "rag":
        print(f"\nnot cited in the answer: {', '.join(f'[{number}]' for number in unused)}")
    if response.failed_quotes:
        print("\nfailed quotes, which the model gave:")
    for failed in response.failed_quotes or []:
        print(f"[{failed.number}] {failed.verdict.replace('_', ' ')}: {_in_marks(failed.quote)}")


def _in_marks(quote: str) -> str:
    return f"“{shown(' '.join(quote.split()))}”"
