"""What calls to other servers run on: an event loop in a thread, one a process, and an HTTP client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpx

PROXY_VARIABLES = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY"
_TLS_VARIABLES = "SSL_CERT_FILE, SSL_CERT_DIR"


@dataclass(frozen=True, slots=True)
class Client:
    """An HTTP client, the host and port of its proxy, empty for none, and that proxy's password."""

    http: httpx.AsyncClient = field(repr=False)
    proxy: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


class EnvironmentUnusable(Exception):
    """What some variables say cannot be used; names them, not their values, which may hold a password."""


def build_client(url: str, connect_seconds: float) -> Client:
    """A client for one address; a connection serves one request, so none can be found stale.

    This machine itself is reached directly, other hosts by the proxy that the environment names for them.
    There is no timeout but that for connecting. Raises `EnvironmentUnusable` and `httpx.InvalidURL`.
    """
    for name in ("httpx", "httpcore"):  # they log URLs and the headers of responses
        logging.getLogger(name).setLevel(logging.WARNING)
    address = httpx.URL(url)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    proxy: httpx.Proxy | None = None
    try:
        given = None if _is_this_machine(address.host) else _proxy_of(address)
        proxy = httpx.Proxy(given) if given else None
        verify = address.scheme == "https" or ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # reading CAs takes long
        transport = httpx.AsyncHTTPTransport(verify=verify, limits=limits, proxy=proxy)
    except (ValueError, ImportError, httpx.InvalidURL):
        raise EnvironmentUnusable(PROXY_VARIABLES) from None
    except OSError:
        raise EnvironmentUnusable(_TLS_VARIABLES) from None
    http = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, connect=connect_seconds))
    if proxy is None:
        return Client(http)
    password = proxy.auth[1] if proxy.auth else ""
    return Client(http, proxy.url.netloc.decode("ascii"), (password,))


def _is_this_machine(host: str) -> bool:
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        try:
            address = ip_address(socket.inet_aton(name))  # 127.1 is 127.0.0.1 as well
        except OSError:
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _proxy_of(address: httpx.URL) -> str | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    hosts = (address.host, address.netloc.decode("ascii"))
    if not proxy or any(urllib.request.proxy_bypass(host) for host in hosts):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose name lookups run in daemon threads: one that hangs keeps no other and no exit waiting."""

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        found: asyncio.Future[list[Any]] = self.create_future()

        def tell(setter: Callable[[Any], None], value: object) -> None:
            if not found.done():
                setter(value)

        def look_up() -> None:
            try:
                result = socket.getaddrinfo(host, port, family, type, proto, flags)
            except (OSError, UnicodeError) as error:
                self.call_soon_threadsafe(tell, found.set_exception, error)
            else:
                self.call_soon_threadsafe(tell, found.set_result, result)

        threading.Thread(target=look_up, name="pyrag-lookup", daemon=True).start()
        return await found


class _Process:
    """The loop of this process, and those that it was forked with.

    The latter are only kept: to close one would touch what it still shares with the parent.
    """

    def __init__(self) -> None:
        self.inherited: list[_Loop] = []
        self._loop: _Loop | None = None
        self._lock = threading.Lock()

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
                threading.Thread(target=self._loop.run_forever, name="pyrag-outbound", daemon=True).start()
            return self._loop

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._loop is not None:
            self.inherited.append(self._loop)
            self._loop = None


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.after_fork)


def outbound_loop() -> asyncio.AbstractEventLoop:
    """The running loop of this process, started by the first call, also after a fork."""
    return _process.loop()
