"""The process that holds the models: uvicorn on a socket it was handed, drained by SIGTERM, renewed by SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from vitrail.errors import VitrailError, missing_extra
from vitrail.ship.serve.limits import Limits

log = logging.getLogger("vitrail.serve")
LEAVE_S = 0.25


class OneLine(logging.Formatter):
    """One event, one line: control characters escaped, length bounded."""

    LONGEST = 2000

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        return safe if len(safe) <= self.LONGEST else safe[: self.LONGEST] + "…"


def set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True


def run_worker(load: Callable[[], dict[str, Any]], sock: socket.socket, limits: Limits) -> int:
    """Load the models, answer until SIGTERM, finish what was accepted, exit 0."""
    try:
        import uvicorn
    except ImportError:
        raise missing_extra("uvicorn", "serve", "vitrail serve") from None
    from vitrail.ship.serve.app import Site, build_app
    from vitrail.ship.serve.metrics import Metrics
    from vitrail.ship.serve.protocol import protocol_with

    set_up_logging()
    start = time.perf_counter()
    site = Site(load(), limits, Metrics())
    gc.freeze()  # the models stay; the collector need not walk them again
    config = uvicorn.Config(
        build_app(site),
        http=protocol_with(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_keep_alive=max(1, int(limits.header_timeout_s)),
        timeout_graceful_shutdown=max(1, int(limits.grace_s)),
        h11_max_incomplete_event_size=32 * 1024,
        server_header=False,
    )
    server = draining_server(config, site)
    _reload_on_hup(site, load)
    _leave_with_parent()
    host, port = sock.getsockname()[:2]
    names = ", ".join(site.models)
    log.info("serving %s on http://%s:%d (loaded in %.1f s)", names, host, port, time.perf_counter() - start)
    server.run(sockets=[sock])
    return 0


def _reload_on_hup(site: Any, load: Callable[[], dict[str, Any]]) -> None:
    def reload() -> None:
        try:
            site.replace(load())
            log.info("reloaded %s", ", ".join(site.models))
        except VitrailError as error:
            log.error("reload failed, the old models stay: %s", error.message)
        except Exception as error:
            log.error("reload failed, the old models stay: %s", type(error).__name__, exc_info=error)

    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload, daemon=True).start())


def _leave_with_parent() -> None:
    """A worker whose parent was killed would hold the port for ever: it drains and leaves."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def draining_server(config: Any, site: Any) -> Any:
    """uvicorn's server, which says 'not ready' from the moment it is told to stop, and then closes without a loss."""
    import uvicorn

    class Draining(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            site.draining = True
            super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Take no new connection, and lose none that the kernel has taken for us already.

            Answers now say `connection: close`, so busy clients leave by themselves. Then the
            line of the listening socket is made as short as it gets and emptied before it closes.
            """
            await asyncio.sleep(LEAVE_S)
            for sock in sockets or []:
                sock.listen(0)
            await asyncio.sleep(LEAVE_S)
            await super().shutdown(sockets)

    return Draining(config)
