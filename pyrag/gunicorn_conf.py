"""Gunicorn's settings for `rag serve`; options on its command line go before them."""

from __future__ import annotations

import os

from pyrag.logs import log_configuration

wsgi_app = "pyrag.wsgi:app"
bind = ["127.0.0.1:8000"]
worker_class = "pyrag.http.worker.Worker"  # gthread, mended
workers = 2
threads = 256
worker_connections = 2000
keepalive = 30
graceful_timeout = 30
timeout = 60
control_socket_disable = True
logconfig_dict = log_configuration(os.environ.get("PYRAG_LOG_FORMAT", "text"))
