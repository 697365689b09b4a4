"""One file over HTTP into a cache: resumed where it broke off, bounded, hashed, and whole or not there.

    FOLDER/name          the file, renamed into place when every byte has arrived and been checked
    FOLDER/name.part     what has arrived so far; FOLDER/name.etag names the version it is part of
    FOLDER/name.lock     held while one process downloads, so that others wait for it

A pinned SHA-256 that does not match deletes what was downloaded. Google's storage sends an
MD5, which is compared too.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from vitrail.errors import CheckpointError, ResourceError, UsageError
from vitrail.runtime.disk import fsync_directory, sha256_of
from vitrail.runtime.progress import Progress, quantity

__all__ = ["LOOPBACK", "check_hash", "download", "room_for"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRIES = 4
TIMEOUT_S = 30.0
_CHUNK = 1 << 20


def download(url: str, target: Path, *, sha256: str | None = None, max_bytes: int | None = None, progress: bool = True) -> Path:
    """`url` as the file `target`; one that is already there is kept (and, where a hash is pinned, compared)."""
    _check_scheme(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target):
        if not target.exists():
            _fetch(url, target, max_bytes, progress)
        if sha256 is not None:
            check_hash(target, sha256, url)
    return target


def check_hash(path: Path, sha256: str, said: str) -> None:
    """Delete a file, and the blob it may link to, that is not the one that was pinned."""
    found = sha256_of(path)
    if found != sha256.lower():
        blob = path.resolve()
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise CheckpointError(
            f"{said}: its SHA-256 is {found}, not the pinned {sha256.lower()}. The download was deleted.",
            hint="the file at its origin changed, or the pin is another file's; compare with whoever published it",
        )


def room_for(size: int, folder: Path, max_bytes: int | None, said: str) -> None:
    """Refuse a download that is larger than allowed or than the disk."""
    if max_bytes is not None and size > max_bytes:
        raise ResourceError(f"{said}: {size:,} bytes, and {max_bytes:,} are allowed.", hint="pass a larger max_bytes= if you trust it")
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ResourceError(
            f"{said}: {quantity(size, 'B')}, and {folder} has {quantity(free, 'B')} free.",
            hint="free space, or set VITRAIL_CACHE to another disk",
        )


def _check_scheme(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise UsageError(f"{url}: only https:// is fetched (plain http:// from this machine alone).")


@contextlib.contextmanager
def _only_one(target: Path) -> Iterator[None]:
    with open(target.with_name(target.name + ".lock"), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# ---- transfer ----


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(req.full_url).scheme == "https":
            _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str) -> urllib.request.OpenerDirector:
    here = urlsplit(url).hostname in LOOPBACK
    return urllib.request.build_opener(_SafeRedirects, *([urllib.request.ProxyHandler({})] if here else []))


def _fetch(url: str, target: Path, max_bytes: int | None, progress: bool) -> None:
    """Try, and try again from where it broke off; then check and rename."""
    part, tag = target.with_name(target.name + ".part"), target.with_name(target.name + ".etag")
    md5 = None
    with Progress(quiet=not progress) as line:
        for attempt in range(TRIES):
            try:
                md5 = _transfer(url, part, tag, max_bytes, lambda done, total: line.show(_said(target.name, done, total)))
                break
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt == TRIES - 1:
                    raise _answered(url, error.code) from None
            except (OSError, http.client.HTTPException) as error:
                if attempt == TRIES - 1:
                    raise _unreachable(url, error) from None
            time.sleep(0.2 * 4**attempt)
    if md5 is not None and _md5_of(part) != md5:
        part.unlink()
        tag.unlink(missing_ok=True)
        raise CheckpointError(f"{url}: the bytes that arrived do not match the server's MD5; they were deleted.", hint="try again")
    with open(part, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(part, target)
    tag.unlink(missing_ok=True)
    fsync_directory(target.parent)


def _transfer(url: str, part: Path, tag: Path, max_bytes: int | None, show: Callable[[int, int | None], None]) -> bytes | None:
    """Append what is missing to `part`; the server's MD5 of the whole, where it sends one."""
    have = part.stat().st_size if part.exists() and tag.exists() else 0
    headers = {"User-Agent": "vitrail", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}
    with _opener(url).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
        have = have if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        room_for((total or 0) - have, part.parent, None, url)
        room_for(total or 0, part.parent, max_bytes, url)
        etag = answer.headers.get("ETag")
        tag.write_text(etag) if etag and not etag.startswith("W/") else tag.unlink(missing_ok=True)
        with open(part, "ab" if have else "wb") as stream:
            done = _copy(answer, stream, have, max_bytes, url, lambda done: show(done, total))
    if total is not None and done != total:
        raise ConnectionError(f"the connection closed after {done:,} of {total:,} bytes")
    return _md5_said(answer.headers.get_all("x-goog-hash") or [])


def _copy(answer: IO[bytes], stream: IO[bytes], done: int, max_bytes: int | None, url: str, show: Callable[[int], None]) -> int:
    while chunk := answer.read(_CHUNK):
        done += len(chunk)
        if max_bytes is not None and done > max_bytes:
            raise ResourceError(
                f"{url}: more than the {max_bytes:,} bytes that are allowed.", hint="pass a larger max_bytes= if you trust it"
            )
        stream.write(chunk)
        show(done)
    return done


def _said(name: str, done: int, total: int | None) -> str:
    whole = f" of {quantity(total, 'B')} ({100 * done // total}%)" if total else ""
    return f"{name}: {quantity(done, 'B')}{whole}"


def _md5_said(values: list[str]) -> bytes | None:
    for item in ",".join(values).split(","):
        name, _, value = item.strip().partition("=")
        if name == "md5":
            with contextlib.suppress(ValueError):
                return base64.b64decode(value)
    return None


def _md5_of(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).digest()


def _answered(url: str, code: int) -> CheckpointError | ResourceError:
    if code in (404, 410):
        return CheckpointError(f"{url}: there is no such file.", hint="check the name")
    if code in (401, 403):
        return CheckpointError(f"{url}: the server refuses it (HTTP {code}).", hint="it may need an account, or not be public")
    return ResourceError(f"{url}: the server answers HTTP {code}.", hint="try again later")


def _unreachable(url: str, error: Exception) -> ResourceError:
    why = getattr(error, "reason", None) or error
    return ResourceError(
        f"{url}: cannot be fetched ({why}).", hint="check the network; what has arrived is kept and continued. Offline, pass a local path"
    )
