"""The commands that look at runs and vaults, and take vaults out: `rag runs`, `status`, `forget`, `vault`."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrag.cli_common import EXIT_USAGE, JsonOption, configuration, given_path, note, print_json, shown
from pyrag.cli_index import recall_text, size_text
from pyrag.errors import InvalidRequest

if TYPE_CHECKING:
    from pyrag.db import Database

runs_app = typer.Typer(
    rich_markup_mode=None,
    help="The ledger: what runs of `rag ingest` did, and why.",
    epilog="Example: rag runs show 3",
)
vault_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Vaults in the index.",
    epilog="Example: rag vault move /old/notes ~/notes",
)

_VECTOR_INDEX = (
    "index_name", "is_valid", "indexed_rows", "size_bytes", "recall", "recall_low", "recall_high",
    "recall_between", "recall_between_low", "recall_between_high", "checked_at", "warning",
)  # fmt: skip
_COUNTERS = ("added", "updated", "moved", "embedded", "deleted", "skipped", "failed")


@runs_app.callback(invoke_without_command=True)
def runs(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Newest runs to show.")] = 20,
    vault: Annotated[str | None, typer.Option(metavar="PATH", help="Only runs of this vault.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest runs, newest first; `rag runs show N` shows one.

    A run whose process is gone is closed as interrupted first.
    """
    if ctx.invoked_subcommand is not None:
        return
    database = _database(ctx)
    closed = database.close_dead_runs()
    if closed:
        note(f"closed as interrupted: {closed}")
    if vault is None:
        rows = database.list_runs(limit)
    else:
        rows = database.list_runs(limit, _literal(vault)) or database.list_runs(limit, _absolute(vault))
    if as_json:
        print_json(rows)
        return
    if not rows:
        print("no run yet; start with: rag ingest PATH_OF_THE_VAULT")
    for row in rows:
        counts = ((name, row[f"documents_{name}"]) for name in _COUNTERS)
        done = ", ".join(f"{count} {name}" for name, count in counts if count)
        error = f"; {shown(row['error_summary'])[:200]}" if row["error_summary"] else ""
        print(f"{row['id']:>5}  {row['started_at'][:19]}  {row['status']:<8} {shown(row['vault_path'])}")
        print(f"       {done or 'nothing to do'}{error}")


@runs_app.command("show", epilog="Example: rag runs show 3 --json")
def runs_show(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(min=1, max=2**63 - 1, help="Number of the run.")],
    unchanged: Annotated[bool, typer.Option("--all", help="Unchanged files too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a run planned and did, document by document: action, reason, chunks, status, error."""
    database = _database(ctx)
    database.close_dead_runs()
    items = database.list_run_items(number, unchanged)
    run = database.list_runs(1, run_id=number)[0]
    if as_json:
        print_json({"run": run, "items": items})
        return
    print(f"run {run['id']} of {shown(run['vault_path'])}: {run['status']}")
    print(f"started {run['started_at'][:19]}, ended {str(run['finished_at'] or 'not yet')[:19]}")
    print(f"provider {run['embedding_provider']}, model {run['embedding_model']}")
    print("documents: " + ", ".join(f"{run['documents_' + name]} {name}" for name in _COUNTERS))
    print(
        f"chunks: {run['chunks_written']} written; embeddings: {run['embeddings_written']} computed,"
        f" {run['embeddings_reused']} reused; deletions withheld: {run['deletions_withheld']}"
    )
    if run["error_summary"]:
        print(f"error: {shown(run['error_summary'])}")
    for item in items:
        moved = f" from {shown(item['moved_from'])}" if item["moved_from"] else ""
        print(f"{item['status']:<8} {item['action']:<7} {shown(item['relative_path'])}{moved}")
        numbers = (
            f"; {item['chunks_written']} chunks, {item['embeddings_written']} computed,"
            f" {item['embeddings_reused']} reused"
        )
        counted = item["status"] == "done" and item["action"] not in ("skip", "delete")
        why = shown(item["error"] or item["reason"])
        print(f"         {why}{numbers if counted else ''}")


def status(
    ctx: typer.Context,
    scan: Annotated[
        bool, typer.Option("--scan/--no-scan", help="Compare with the files on disk (reads them all).")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Show vault by vault what is indexed, what is stale on disk, what failed and why, and coverage."""
    from pyrag.service import Service, open_database

    settings = configuration(ctx).settings
    service = Service(settings, open_database(settings, note))
    database = service.database
    coverage = database.list_coverage()
    vaults = database.list_vaults(service.index)
    for vault in vaults:
        vault["stale"] = _stale(service, vault["vault_path"]) if scan else None
        vault["coverage"] = [
            {key: value for key, value in row.items() if key != "vault_path"}
            for row in coverage
            if row["vault_path"] == vault["vault_path"]
        ]
        left = database.list_run_items(vault["last_run_id"], False) if vault["last_run_id"] else []
        vault["failures"] = [
            {"relative_path": item["relative_path"], "error": item["error"]}
            for item in left
            if item["status"] == "failed"
        ]
    found = database.vector_index_status(service.index)
    if as_json:
        print_json({"embedding_provider": service.index.provider, "embedding_model": service.index.model,
                    "vector_index": {name: found[name] for name in _VECTOR_INDEX} if found else None,
                    "vaults": vaults})  # fmt: skip
        return
    if not vaults:
        print("nothing is indexed; start with: rag ingest PATH_OF_THE_VAULT")
    for vault in vaults:
        _print_vault(vault)
    if found is not None:
        about = f"{found['indexed_rows']} vectors, {size_text(found['size_bytes'])}"
        state = f"recall {recall_text(found)}" if found["is_valid"] else "not complete"
        print(f"approximate index: {about}; {state}")
        if found["warning"]:
            print(f"warning: {found['warning']}")


def _stale(service: Any, vault_path: str) -> dict[str, Any]:
    """What a run would do now, as counts by action; or why the vault cannot be compared."""
    from pyrag.ingest import preview_vault
    from pyrag.progress import progress_bar

    try:
        with progress_bar() as progress:
            plan = preview_vault(vault_path, service.database, service.embedder, progress=progress)
    except InvalidRequest as error:
        return {"error": error.message}
    counts = dict.fromkeys(("add", "change", "move", "embed", "delete", "withhold"), 0)
    for item in plan:
        if item.action in counts and not item.error:
            counts["withhold" if item.withheld else item.action] += 1
    return {**counts, "unreadable": sum(item.error is not None for item in plan)}


def _print_vault(vault: dict[str, Any]) -> None:
    print(shown(vault["vault_path"]))
    print(f"  indexed: {vault['documents']} documents, {vault['chunks']} chunks"
          + (f"; {vault['with_warnings']} with warnings" if vault["with_warnings"] else ""))  # fmt: skip
    stale = vault["stale"]
    if stale is not None:
        if "error" in stale:
            print(f"  on disk: {shown(stale['error'])}")
        else:
            actions = ("add", "change", "move", "embed", "delete")
            left = ", ".join(f"{stale[name]} to {name}" for name in actions if stale[name])
            if stale["withhold"]:
                left = f"{left}; " * bool(left) + f"{stale['withhold']} deletions that a run would withhold"
            unread = f"; {stale['unreadable']} cannot be read" if stale["unreadable"] else ""
            print(f"  on disk: {left or 'in step'}{unread}")
    for row in vault["coverage"]:
        share = f"{row['embedded']} of {row['chunks']} chunks"
        print(f"  embedded by {row['embedding_provider']} {row['embedding_model']}: {share}")
    if vault["last_run_id"]:
        success = f"last success {vault['indexed_at'][:19]}" if vault["indexed_at"] else "none succeeded yet"
        when = vault["last_run_at"][:19]
        print(f"  last run: {vault['last_run_id']}, {vault['last_run_status']}, {when}; {success}")
    for failure in vault["failures"]:
        print(f"  failed: {shown(failure['relative_path'])}: {shown(str(failure['error']))}")
    if vault["withheld"]:
        print(f"  withheld: {vault['withheld']} deletions; see: rag runs show {vault['last_run_id']}")


def forget(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(help="A vault, a folder or note in one, or a folder above vaults.")],
    yes: Annotated[bool, typer.Option("--yes", help="Really remove it; without, only the counts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what is stored of a vault, folder or note, ledger included, and prove it with counts.

    Files are not touched: what is still in a vault comes back with its next ingest.
    """
    from pyrag.service import Service, open_database

    settings = configuration(ctx).settings
    service = Service(settings, open_database(settings, note))
    database = service.database
    known = [row["vault_path"] for row in database.list_vaults(service.index)]
    wanted, places = _places(path, known)
    before = _sum(database.forget(vault, inside, confirmed=False) for vault, inside in places)
    after = None
    if yes:
        before = _sum(database.forget(vault, inside, confirmed=True) for vault, inside in places)
        after = _sum(database.forget(vault, inside, confirmed=False) for vault, inside in places)
    if as_json:
        vaults = [vault for vault, _ in places]
        print_json({"path": wanted, "vaults": vaults, "stored": before, "left": after})
    elif not any(before.values()):
        print(f"nothing is stored of {shown(wanted)}")
    else:
        print(f"{'removed' if yes else 'stored'} of {shown(wanted)}: {_counts(before)}")
        for vault, _ in places if len(places) > 1 else ():
            print(f"  of the vault {shown(vault)}")
        if after is not None:
            print(f"left: {_counts(after)}")
    if any(before.values()) and not yes:
        note("Nothing was removed. To remove it: add --yes")
        raise typer.Exit(EXIT_USAGE)


@vault_app.command("move", epilog="Example: rag vault move /old/notes ~/notes")
def vault_move(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(help="Path that the vault had when it was ingested.")],
    new: Annotated[str, typer.Argument(help="Path that it has now.")],
) -> None:
    """Give what is stored of a vault its new path, after the folder was moved; nothing is embedded again."""
    from pyrag.vault import resolve_vault

    database = _database(ctx)
    former, current = _literal(old), str(resolve_vault(new))
    if former not in {row["vault_path"] for row in database.list_coverage()}:
        former = former if database.list_runs(1, former) else _absolute(old)
    moved = database.move_vault(former, current)
    print(f"{moved} documents of {shown(former)} are now of {shown(current)}")


def _database(ctx: typer.Context) -> Database:
    from pyrag.service import open_database

    return open_database(configuration(ctx).settings, note)


def _absolute(path: str) -> str:
    """A path as vaults are stored: absolute, symlinks resolved as far as it exists."""
    return os.path.realpath(given_path(path))


def _literal(path: str) -> str:
    """The absolute path as it is written: where a vault was, a symlink may have taken its place."""
    return os.path.abspath(given_path(path))


def _places(path: str, known: list[str]) -> tuple[str, list[tuple[str, str | None]]]:
    """The path in full, and where something may be stored of it: vaults, paths in vaults (they nest)."""
    for wanted in (_literal(path), _absolute(path)):
        below: list[tuple[str, str | None]] = [
            (each, None) for each in known if f"{each}/".startswith(f"{wanted.rstrip('/')}/")
        ]
        around = [each for each in known if wanted.startswith(f"{each}/")]
        places = below + [(each, unicodedata.normalize("NFC", wanted[len(each) + 1 :])) for each in around]
        if places:
            return wanted, places
    return wanted, [(wanted, None)]


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums of counts that have the same names."""
    rows = list(counts)
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('run_items', 'ledger items')}" for name, count in counts.items())
