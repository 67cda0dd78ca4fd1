"""The HTTP API: `create_app` makes a WSGI application over a `Service`."""

from pyrag.http.app import create_app

__all__ = ["create_app"]
