"""The WSGI application for gunicorn: `rag serve`, or `gunicorn pyrag.wsgi:app -k gthread --threads 64`.

Reads the settings and opens the database when it is imported, in each worker. `rag serve` passes what its
options say in two variables that are no settings: `PYRAG_ENV_FILE` and `PYRAG_ANSWERS`.
"""

from __future__ import annotations

import logging.config
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrag.config import load_configuration
from pyrag.errors import PyragError
from pyrag.http.app import DEFAULT_ANSWERS, create_app
from pyrag.logs import log_configuration
from pyrag.service import Service, open_database

if TYPE_CHECKING:
    import falcon

POOL_SIZE = 16  # database connections of one worker


def _make() -> falcon.App[Any, Any]:
    env_file = os.environ.get("PYRAG_ENV_FILE")
    settings = load_configuration(Path(env_file) if env_file else None).settings
    logging.config.dictConfig(log_configuration(settings.log_format))
    # none of this is in a log line, and looking it up costs more than the line (logging HOWTO: Optimization)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    log = logging.getLogger("pyrag")
    service = Service(settings, open_database(settings, log.info, POOL_SIZE))
    return create_app(service, int(os.environ.get("PYRAG_ANSWERS", DEFAULT_ANSWERS)))


try:
    app = _make()
except PyragError as error:
    print(f"{error.message}\n{error.hint}".strip(), file=sys.stderr)
    sys.exit(4)  # gunicorn: the application cannot be loaded, do not try again
