"""A client of OpenAI-compatible servers. Each reply is a task on one event loop, which has its own thread."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr

from pyrag import __version__
from pyrag.chat_reply import TOO_LONG, ChatReply, ReplyFailed, server_message
from pyrag.errors import LlmAuthFailed, LlmRateLimited, LlmTimeout, LlmUpstreamError, PyragError
from pyrag.event_stream import EventReader, EventTooLarge
from pyrag.models import Finish, Prompt
from pyrag.outbound import PROXY_VARIABLES, Client, EnvironmentUnusable, build_client, outbound_loop
from pyrag.redaction import one_line

_TICK = 0.5  # seconds between two signs of life of a reply that waits
_CONNECT = 10.0  # seconds
_AFTER_FINISH = 1.0  # seconds that a server has for [DONE] or an error after its finish_reason
_AFTER_STATUS = 2.0  # seconds that a server has for the body of an error
_RETRY_AFTER = 1.0  # seconds before the second try where the server names none
_MOST_RETRY_AFTER = 1e9  # seconds
_MOST_OF_A_BODY = 16_000_000  # bytes
_MOST_OF_AN_ERROR = 64_000  # bytes

Put = Callable[[str | Finish | PyragError], None]


class RemoteLlm:
    """A model behind `POST {base_url}/chat/completions`. Cheap to make; may be made before a fork.

    `timeout_seconds` is the total for one reply, `read_seconds` the longest silence within a stream.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        key: SecretStr,
        timeout_seconds: float,
        max_tokens: int,
        read_seconds: float = 60,
    ) -> None:
        self._url = f"{base_url}/chat/completions"
        self._model = model
        self._key = key
        self._total = timeout_seconds
        self._max_tokens = max_tokens
        self._host = base_url.split("/")[2]
        self._connect = min(_CONNECT, timeout_seconds)
        self._read = min(read_seconds, timeout_seconds)
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}

    def __repr__(self) -> str:
        return f"RemoteLlm({self._host!r}, {self._model!r})"

    def reply(self, prompt: Prompt, *, stream: bool) -> Iterator[str | Finish | None]:
        """The answer as pieces, None while waiting, then `Finish`; see `Llm`. Starts at the first `next`."""
        body = {
            "model": self._model,
            "messages": [{"role": each.role, "content": each.content} for each in prompt.messages],
            "temperature": 0,
            "max_tokens": self._max_tokens,
            "stream": stream,
        }
        items: queue.SimpleQueue[str | Finish | PyragError] = queue.SimpleQueue()
        task = asyncio.run_coroutine_threadsafe(self._run(body, items.put), outbound_loop())
        try:
            while True:
                try:
                    item: str | Finish | PyragError | None = items.get(timeout=_TICK)
                except queue.Empty:
                    item = None
                if isinstance(item, PyragError):
                    raise item
                yield item
                if isinstance(item, Finish):
                    return
        finally:
            task.cancel()

    async def _run(self, body: dict[str, Any], put: Put) -> None:
        """Puts what `reply` gives. An error is a new object: those of httpx hold the key in their request."""
        reply = ChatReply()
        client: Client | None = None
        total = asyncio.timeout(self._total)
        sent = False

        def send(text: str) -> None:
            nonlocal sent
            if text:
                sent = True
                put(text)

        try:
            client = self._client()
            try:
                async with total:
                    await self._exchange(client.http, body, reply, send)
            except TimeoutError:
                if not reply.reason:
                    raise
            rest, finish = reply.end()
        except Exception as error:
            failed = self._total_passed() if total.expired() else self._failed(error)
            put(self._error(failed, client, mid_stream=sent))
        else:
            send(rest)
            put(finish)

    async def _exchange(
        self, http: httpx.AsyncClient, body: dict[str, Any], reply: ChatReply, send: Callable[[str], None]
    ) -> None:
        now = asyncio.get_running_loop().time
        until = now() + self._total
        first = True
        while True:
            async with http.stream("POST", self._url, json=body, headers=self._headers()) as response:
                if response.is_success:
                    kind = response.headers.get("content-type", "").lower()
                    other = "json" in kind or "html" in kind or not body["stream"]
                    if "event-stream" in kind or not other:
                        await self._read_events(response, reply, send)
                    else:
                        text = reply.body(await _read_body(response))
                        reply.end()
                        send(text)
                    return
                wait = _retry_after(response.headers.get("retry-after", ""))
                again = first and response.status_code in (429, 503) and now() + wait < until
                if not again:
                    raise await _refused(response)
            first = False
            await asyncio.sleep(wait)

    async def _read_events(
        self, response: httpx.Response, reply: ChatReply, send: Callable[[str], None]
    ) -> None:
        events = EventReader()
        now = asyncio.get_running_loop().time
        finished = False
        until = 0.0
        chunks = response.aiter_bytes()
        while not reply.done:
            if not finished:
                finished = bool(reply.reason)
                until = now() + (_AFTER_FINISH if finished else self._read)
            try:
                async with asyncio.timeout_at(until):
                    chunk = await anext(chunks, None)
            except (TimeoutError, httpx.TransportError) as error:
                if finished:
                    return
                if isinstance(error, TimeoutError):
                    raise ReplyFailed(f"not one byte for {self._read:g} s", kind=LlmTimeout) from None
                raise
            if chunk is None:
                return
            for event in events.feed(chunk):
                send(reply.event(event))

    def _client(self) -> Client:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = build_client(self._url, self._connect)
        return self._clients[loop]

    def _headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._key.get_secret_value()}",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Connection": "close",
            "User-Agent": f"pyrag/{__version__}",
        }

    def _total_passed(self) -> ReplyFailed:
        return ReplyFailed(
            f"no whole answer within the total time of {self._total:g} s (LLM_TIMEOUT_SECONDS)",
            kind=LlmTimeout,
            hint="Raise LLM_TIMEOUT_SECONDS, or use a faster model.",
        )

    def _failed(self, error: Exception) -> ReplyFailed:
        check = "Check LLM_BASE_URL, and that the server runs."
        match error:
            case ReplyFailed():
                return error
            case EnvironmentUnusable():
                return ReplyFailed(
                    f"what the environment says cannot be used: {error}",
                    hint="Write a proxy as http://HOST:PORT; one of socks5:// needs the package socksio.",
                )
            case EventTooLarge():
                return ReplyFailed(str(error))
            case httpx.ConnectTimeout():
                return ReplyFailed(f"no connection within {self._connect:g} s", kind=LlmTimeout, hint=check)
            case httpx.ProxyError():
                return ReplyFailed("the proxy refuses", str(error), hint=f"Check {PROXY_VARIABLES}.")
            case httpx.ConnectError() | httpx.InvalidURL() | httpx.UnsupportedProtocol():
                return ReplyFailed("cannot be reached", str(error), hint=check)
            case httpx.TransportError():
                return ReplyFailed("the connection broke off", f"{type(error).__name__} {error}")
        return ReplyFailed("the call failed", f"{type(error).__name__} {error}")

    def _error(self, failed: ReplyFailed, client: Client | None, *, mid_stream: bool) -> PyragError:
        via = f" via proxy {client.proxy}" if client and client.proxy else ""
        secrets = (self._key.get_secret_value(), *(client.secrets if client else ()))
        message = f"{self._host}{via}, model {self._model}: {one_line(failed.what, secrets)}"
        if mid_stream:
            message += ", in the middle of the answer"
        said = one_line(failed.said, secrets)
        if said:
            message += f": {said}"
        details = {"host": self._host, "model": self._model, **failed.details, "mid_stream": mid_stream}
        return failed.kind(message, hint=failed.hint, details=details)


async def _read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_OF_A_BODY:
            raise ReplyFailed(f"a body of more than {_MOST_OF_A_BODY} bytes")
    return bytes(body)


async def _refused(response: httpx.Response) -> ReplyFailed:
    """What a status other than 2xx means, with the beginning of what the server says about it."""
    status = response.status_code
    body = bytearray()
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_AFTER_STATUS):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _MOST_OF_AN_ERROR:
                    break
    said = server_message(bytes(body))
    what, hint = f"HTTP status {status}", ""
    kind: type[PyragError] = LlmUpstreamError
    details: dict[str, object] = {"status": status}
    if status == 401:
        what, kind, hint = "authentication failed (401)", LlmAuthFailed, "Check LLM_API_KEY."
    elif status == 403:
        what, kind, hint = "access refused (403)", LlmAuthFailed, "Check what this account may use."
    elif status == 429:
        what, kind, hint = "too many requests (429)", LlmRateLimited, "Ask again later."
    elif status in (400, 413):
        hint = TOO_LONG
    elif status == 500:
        hint = "See the log of that server, and check LLM_MODEL."
    elif status == 404:
        hint = "Check LLM_BASE_URL and LLM_MODEL."
    elif response.has_redirect_location:
        said = response.headers["location"]
        what, hint = f"redirected ({status})", "Set LLM_BASE_URL to the address that it redirects to."
    if status in (429, 503) and "retry-after" in response.headers:
        details["retry_after_seconds"] = _retry_after(response.headers["retry-after"])
    return ReplyFailed(what, said, kind=kind, hint=hint, **details)


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header, which has seconds or a date; the default where it has neither."""
    with suppress(ValueError):
        if value.strip().isdecimal():
            return min(float(value), _MOST_RETRY_AFTER)
        return min(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()), _MOST_RETRY_AFTER)
    return _RETRY_AFTER
