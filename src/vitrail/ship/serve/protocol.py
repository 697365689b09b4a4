"""uvicorn's HTTP protocol with what middleware cannot do: deadlines for headers, and a close that loses no answer.

A client that sends its header a byte at a time never reaches the application, and an
idle connection holds a slot for nothing. So the deadline lives here: from the first
moment of a connection, and again from the end of each answer, a whole header must
arrive within `header_timeout_s`. The body has its own deadline in `app.py`.

Closing a socket that holds unread bytes resets it, and the client may never see why it was
refused. So a connection that is closed in the middle of a body is first closed for writing,
then read and thrown away for a moment, within the limit on bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.ship.serve.limits import Limits

FULL_BODY = b'{"error":"too many connections"}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(FULL_BODY), FULL_BODY)
)
SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
LINGER_S = 1.0
SLACK = 64 * 1024  # bytes that may be read beyond the limit of a body


class Lingering:
    """The transport as uvicorn sees it: `close()` goes by way of `DeadlineProtocol.leave`."""

    def __init__(self, transport: asyncio.Transport, protocol: DeadlineProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._protocol.leaving or self._transport.is_closing()

    def close(self) -> None:
        self._protocol.leave()


class DeadlineProtocol(H11Protocol):
    limits: Limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timer: asyncio.TimerHandle | None = None
        self.real: asyncio.Transport | None = None
        self.leaving = False
        self.received = 0  # bytes since the last answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.real = transport
        super().connection_made(Lingering(transport, self))  # type: ignore[arg-type]
        if len(self.connections) > self.limits.connections:
            transport.write(FULL)
            transport.close()
            return
        self._arm(self.limits.header_timeout_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self.leaving = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.leaving:
            if self.received > self.limits.max_bytes + SLACK and self.real is not None:
                self.real.abort()
            return
        super().data_received(data)
        if not self.leaving and self.conn.their_state is not h11.IDLE:  # the whole header is here
            self._disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.received = 0
        if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
            self._arm(self.limits.header_timeout_s, self._too_slow)

    def leave(self) -> None:
        """Close; with a body still on its way, only after it was thrown away or took too long."""
        if self.leaving or self.real is None or self.real.is_closing():
            return
        self.leaving = True
        self._disarm()
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            self.real.close()
            return
        self.real.write_eof()
        self.real.resume_reading()
        self._arm(LINGER_S, self.real.close)

    def _arm(self, seconds: float, action: Any) -> None:
        self._disarm()
        self.timer = self.loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _too_slow(self) -> None:
        if self.transport.is_closing() or self.real is None:
            return
        if self.cycle is None or self.conn.trailing_data[0]:  # it began, or never said a word
            self.real.write(SLOW)
        self.real.close()


def protocol_with(limits: Limits) -> type[DeadlineProtocol]:
    """uvicorn wants a class; this one carries the limits."""
    return type("VitrailProtocol", (DeadlineProtocol,), {"limits": limits})
