"""pyrag: a Markdown vault in, cited answers out, from one Postgres."""

__version__ = "0.1.0"
