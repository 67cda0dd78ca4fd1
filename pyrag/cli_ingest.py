"""The commands that bring notes in: `rag ingest`, `rag watch`, `rag chunk`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrag.cli_common import (
    EXIT_FAILED_FILES,
    EXIT_WITHHELD,
    JsonOption,
    configuration,
    note,
    print_json,
    shown,
)
from pyrag.errors import InvalidRequest

if TYPE_CHECKING:
    from pyrag.config import Settings
    from pyrag.ingest import IngestReport
    from pyrag.models import PlanItem

EncodingOption = Annotated[
    str | None,
    typer.Option(help="What notes are that are not UTF-8, e.g. gb18030; default RAG_VAULT_ENCODING."),
]


def ingest(
    ctx: typer.Context,
    vault: Annotated[str | None, typer.Argument(help="Folder of notes; default VAULT_PATH.")] = None,
    allow_mass_delete: Annotated[
        bool, typer.Option("--allow-mass-delete", help="Delete even if many or all documents would vanish.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done and why; writes nothing.")
    ] = False,
    encoding: EncodingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the index in step with a vault: new, changed, renamed, deleted notes. The vault is only read."""
    from pyrag.ingest import ingest_vault, preview_vault
    from pyrag.progress import progress_bar
    from pyrag.service import Service, open_database

    settings = configuration(ctx, RAG_VAULT_ENCODING=encoding).settings
    path = _vault(settings, vault)
    service = Service(settings, open_database(settings, note))
    with progress_bar() as progress:
        if dry_run:
            plan = preview_vault(
                path,
                service.database,
                service.embedder,
                allow_mass_delete=allow_mass_delete,
                progress=progress,
            )
        else:
            report = ingest_vault(
                path,
                service.database,
                service.embedder,
                allow_mass_delete=allow_mass_delete,
                encoding=settings.vault_encoding,
                chunks_in_memory=settings.ingest_chunks,
                progress=progress,
            )
    if dry_run:
        _print_plan(plan, as_json)
        return
    _note_problems(report)
    if as_json:
        failures = [{"relative_path": path, "error": reason} for path, reason in report.failed]
        print_json({**report.run, "deletions_withheld": len(report.withheld), "failures": failures})
    else:
        _print_run(report)
    if report.withheld:
        raise typer.Exit(EXIT_WITHHELD)
    if report.failed:
        raise typer.Exit(EXIT_FAILED_FILES)


def watch(
    ctx: typer.Context,
    vault: Annotated[str | None, typer.Argument(help="Folder of notes; default VAULT_PATH.")] = None,
    encoding: EncodingOption = None,
) -> None:
    """Keep the index in step with a vault until Ctrl-C: each change runs the same as `rag ingest`.

    Survives a restart of the database and a vault that is not there for a while. Deletions that look like
    an accident are withheld; `rag ingest --allow-mass-delete` does them.
    """
    from pyrag.ingest import ingest_vault
    from pyrag.service import Service, open_database
    from pyrag.watching import watch_vault

    settings = configuration(ctx, RAG_VAULT_ENCODING=encoding).settings
    path = _vault(settings, vault)
    service = Service(settings, open_database(settings, note))

    def run() -> None:
        report = ingest_vault(
            path,
            service.database,
            service.embedder,
            encoding=settings.vault_encoding,
            chunks_in_memory=settings.ingest_chunks,
        )
        _note_problems(report)
        if any(report.run[name] for name in _CHANGES):
            _print_run(report)
            sys.stdout.flush()

    note(f"watching {path}; end with Ctrl-C")
    watch_vault(path, run, note)


_CHANGES = (
    "documents_added", "documents_updated", "documents_moved", "documents_embedded", "documents_deleted",
    "documents_failed",
)  # fmt: skip


def _vault(settings: Settings, vault: str | None) -> Path:
    from pyrag.vault import resolve_vault

    if vault is None and settings.vault_path is None:
        raise InvalidRequest(
            "no vault given", hint="Example: rag ingest samples/acme-vault, or set VAULT_PATH."
        )
    return resolve_vault(str(settings.vault_path) if vault is None else vault)


def _note_problems(report: IngestReport) -> None:
    for relative_path, warning in report.warnings:
        note(f"warning: {shown(relative_path)}: {shown(warning)}")
    for relative_path, reason in report.failed:
        note(f"failed: {shown(relative_path)}: {shown(reason)}")
    if report.withheld:
        why = report.withheld[0].reason.removeprefix("withheld: ")
        note(f"{len(report.withheld)} deletions withheld ({why}).")
        note("  If that is right, run again with --allow-mass-delete.")


def _print_plan(plan: list[PlanItem], as_json: bool) -> None:
    """What would be done, path by path; unchanged files only as a number."""
    from collections import Counter
    from dataclasses import asdict

    if as_json:
        print_json([{**asdict(item), "withheld": item.withheld} for item in plan])
        return
    counts: Counter[str] = Counter()
    for item in plan:
        what = "fail" if item.error else "withhold" if item.withheld else item.action
        counts[what] += 1
        if what != "skip":
            why = item.error or item.reason.removeprefix("withheld: ")
            print(f"{what:<9} {shown(item.relative_path)}  ({shown(why)})")
    order = ("add", "change", "move", "embed", "delete", "withhold", "fail", "skip")
    print("would be: " + ", ".join(f"{counts[name]} {name}" for name in order))
    print("dry run: nothing was written")


def _print_run(report: IngestReport) -> None:
    from datetime import datetime

    run = report.run
    seconds = (
        datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["started_at"])
    ).total_seconds()
    print(f"run {run['id']} of {shown(run['vault_path'])}: {run['status']} in {seconds:.1f} s")
    print(
        "documents: "
        + ", ".join(
            f"{run['documents_' + name]} {name}"
            for name in ("added", "updated", "moved", "embedded", "deleted", "skipped", "failed")
        )
    )
    print(
        f"chunks: {run['chunks_written']} written; embeddings: {run['embeddings_written']} computed,"
        f" {run['embeddings_reused']} reused"
    )


def chunk(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Markdown file.")],
    encoding: EncodingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a note as it would be stored: chunks with tokens, heading path, tags, links; no database."""
    from pyrag.reading import stored_form

    settings = configuration(ctx, RAG_VAULT_ENCODING=encoding).settings
    form = stored_form(file, settings.vault_encoding)
    if as_json:
        print_json(form)
        return
    document = form["document"]
    print(f"{shown(document['file_path'])}: {len(form['chunks'])} chunks, {document['size_bytes']} bytes")
    for warning in document["warnings"]:
        note(f"warning: {shown(warning)}")
    if document["frontmatter"]:
        print(f"frontmatter: {json.dumps(document['frontmatter'], ensure_ascii=False)}")
    for each in form["chunks"]:
        print(f"\n--- chunk {each['chunk_index']}, {each['token_count']} tokens: "
              f"{shown(' > '.join(each['heading_path'])) or '(no heading)'}")  # fmt: skip
        for name in ("tags", "wikilinks"):
            if each[name]:
                print(f"    {name}: {shown(', '.join(each[name]))}")
        for path in each["metadata"].get("sections", []):
            print(f"    section: {shown(' > '.join(path))}")
        print("\n".join(shown(line) for line in each["content"].split("\n")))
