"""The commands `rag db …`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from pyrag.cli_common import JsonOption, configuration, note, print_json
from pyrag.cli_index import index_app
from pyrag.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyrag.embedded import EmbeddedServer

_TERMS_AT_ONCE = 2000  # chunks; about a second

db_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The database: set up, start, stop, look.",
    epilog="Example: rag db init",
)
db_app.add_typer(index_app, name="index")


@db_app.command("init", epilog="Example: rag db init")
def db_init(ctx: typer.Context) -> None:
    """Create or update the schema `rag`; safe to run again, loses nothing."""
    from pyrag.service import open_database

    database = open_database(configuration(ctx).settings, note)
    report = database.install()
    done = "created" if report.created else "checked"
    print(f"schema rag {done}: version {report.version}, {report.functions} function files installed")
    for name in report.migrations:
        print(f"migration {name} applied")
    filled = 0
    while made := database.fill_terms(_TERMS_AT_ONCE):
        filled += made
        note(f"words of {filled} stored chunks indexed")


@db_app.command("start", epilog="Example: rag db start")
def db_start(ctx: typer.Context) -> None:
    """Start the embedded Postgres (every command that needs it does so by itself)."""
    server = _embedded(ctx)
    print(server.start())


@db_app.command("stop", epilog="Example: rag db stop")
def db_stop(ctx: typer.Context) -> None:
    """Stop the embedded Postgres; its data stays."""
    print("stopped" if _embedded(ctx).stop() else "was not running")


@db_app.command("status", epilog="Example: psql \"$(rag db status --json | python3 -c 'import json, sys; "
                "print(json.load(sys.stdin)[\"url\"])')\"")  # fmt: skip
def db_status(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Show which database is used and whether it runs; `url` in --json can be used as it is."""
    from pyrag.config import mask_password

    settings = configuration(ctx).settings
    if settings.database_url is not None:
        from pyrag.db import Database

        database = Database(settings.database_url.get_secret_value())
        facts: dict[str, Any] = {"embedded": False, "running": database.answers(), "url": database.url}
    else:
        status = _embedded(ctx).status()
        facts = {
            "embedded": True,
            "running": status.running,
            "url": status.url,
            "data_dir": str(status.data_dir),
            "version": status.version,
            "pid": status.pid,
            "log_file": str(status.log_file),
        }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        shown = mask_password(value) if name == "url" and value else value
        print(f"{name + ':':<10} {'' if shown is None else shown}")


@db_app.command(
    "psql",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": ["--help"],  # -h is psql's
    },
    epilog="Example: rag db psql -c 'select relative_path from rag.documents'",
)
def db_psql(ctx: typer.Context) -> None:
    """Open psql on the database; further arguments are handed on to psql (its own help: -- --help)."""
    import shutil

    from pyrag.config import split_password
    from pyrag.service import open_database

    settings = configuration(ctx).settings
    database = open_database(settings, note)
    database.ping()
    installed = shutil.which("psql") if settings.database_url is not None else None
    program = installed or str(_embedded(ctx, needed=False).binary("psql"))
    url, password = split_password(database.url)
    environment = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    sys.stdout.flush()
    os.execve(program, [program, url, *ctx.args], environment)


def _embedded(ctx: typer.Context, needed: bool = True) -> EmbeddedServer:
    from pyrag.embedded import EmbeddedServer

    settings = configuration(ctx).settings
    if needed and settings.database_url is not None:
        raise InvalidConfiguration(
            "DATABASE_URL is set, so the embedded server is not used",
            hint="Remove DATABASE_URL to use the embedded server, or manage that database by its own means.",
        )
    assert settings.pyrag_home is not None
    return EmbeddedServer(settings.pyrag_home, notify=note)
