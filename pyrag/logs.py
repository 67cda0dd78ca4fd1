"""Logging of the HTTP server: one line an event, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and what the record carries in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False, default=str)


def log_configuration(log_format: str) -> dict[str, Any]:
    """A configuration for `logging.config` (and gunicorn's `logconfig_dict`): INFO and above to stderr.

    The loggers of the HTTP client stay at WARNING: what they say below that names headers and addresses.
    """
    formatter: dict[str, Any] = {"()": "pyrag.logs.JsonLines"}
    if log_format != "json":
        formatter = {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatter},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "line"}
        },
        "root": {"level": "INFO", "handlers": ["stderr"]},
        "loggers": {
            "gunicorn.error": {"level": "INFO", "handlers": [], "propagate": True},
            "httpx": {"level": "WARNING"},
            "httpcore": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
        },
    }
