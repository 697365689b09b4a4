"""Data sets of the Hugging Face hub, as the parquet files (or tar shards) they are stored in.

    hf://datasets/owner/name                    all of it; its splits by the names of its files
    hf://datasets/owner/name@revision           a branch, a tag or a commit
    hf://datasets/owner/name/config             the files below one folder, or a pattern of files

Files of the split that is asked for are downloaded to the hub's own cache and read from
there; what is not stored as parquet is taken from the hub's parquet conversion. Without a
network (or with HF_HUB_OFFLINE=1) the cache answers alone.
"""

from __future__ import annotations

import fnmatch
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from vitrail.data.files import LocalFiles
from vitrail.data.parquet import Parquet
from vitrail.data.source import Listing, Options, Reader
from vitrail.data.split import role, shard_splits
from vitrail.data.tar import Tar
from vitrail.errors import DataError, ResourceError, UsageError

__all__ = ["Hub", "open_hub"]

CONVERTED = "refs/convert/parquet"  # where the hub keeps its own parquet conversion of a data set
_ADDRESS = re.compile(r"hf://datasets/(?P<repo>[\w.\-]+/[\w.\-]+)(?:@(?P<revision>[^/]+))?(?:/(?P<inside>.+?))?/?")


@dataclass(frozen=True)
class Place:
    """One revision of one repository, and the files in it that are the data."""

    repo: str
    revision: str
    paths: tuple[str, ...]
    folder: Path | None = None  # the cached snapshot, when there is no network


def open_hub(where: str, options: Options) -> Reader:
    """The reader of an hf:// address; nothing is downloaded yet but the list of files."""
    found = _ADDRESS.fullmatch(where)
    if not found:
        raise UsageError(f"{where} is no data set on the hub.", hint="write hf://datasets/OWNER/NAME, with @REVISION or /FOLDER")
    return Hub(_locate(found["repo"], found["revision"], found["inside"] or "", where), where)


class Hub:
    """Downloads the files of a split when it is opened."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name = place, name
        self.by_split = shard_splits(place.paths)
        self.tolerant = place.paths[0].endswith(".tar")

    def splits(self) -> tuple[str, ...]:
        return tuple(self.by_split)

    def open(self, split: str | None, options: Options) -> Listing:
        if not split:
            return self._reader({"": self.place.paths}).open(None, options)
        reader = self._reader({split: self.by_split[split]})
        if not reader.names_classes(options):  # then the labels of every split are needed to number them
            reader = self._reader(self.by_split)
        return reader.open(split, options)

    def _reader(self, by_split: Mapping[str, Sequence[str]]) -> Parquet | Tar:
        here = {split: [self._fetch(path) for path in paths] for split, paths in by_split.items()}
        kind = Tar if self.tolerant else Parquet
        everything = [path for paths in here.values() for path in paths]
        return kind(LocalFiles(), everything, self.name, {} if "" in here else here)

    def _fetch(self, path: str) -> str:
        if self.place.folder is not None:
            return str(self.place.folder / path)
        import huggingface_hub as hub

        try:
            return hub.hf_hub_download(self.place.repo, path, repo_type="dataset", revision=self.place.revision, endpoint=_endpoint())
        except Exception as error:
            raise _refusal(error, self.name) from None


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT")  # read now: the library reads it when it is imported


def _locate(repo: str, revision: str | None, inside: str, where: str) -> Place:
    import huggingface_hub as hub

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return _cached(repo, revision, inside, where)
    api = hub.HfApi(endpoint=_endpoint())
    try:
        _knock(api.endpoint)
        for one in [revision] if revision else ["main", CONVERTED]:
            paths = _choose(api.list_repo_files(repo, repo_type="dataset", revision=one), inside, where)
            if paths:
                return Place(repo, one, paths)
    except hub.errors.RevisionNotFoundError as error:
        if revision:
            raise _refusal(error, where) from None
    except Exception as error:
        if isinstance(error, DataError):
            raise
        if not _no_network(error):
            raise _refusal(error, where) from None
        return _cached(repo, revision, inside, where, error)
    raise DataError(f"{where}: no parquet files and no tar shards there.", hint="look at its files on the hub, or convert it")


def _knock(endpoint: str) -> None:
    """ConnectionError at once where nobody answers; the library would try again for half a minute."""
    place = urlsplit(endpoint)
    if place.hostname and not getproxies().get(place.scheme):
        try:
            socket.create_connection((place.hostname, place.port or (443 if place.scheme == "https" else 80)), 10).close()
        except OSError as error:
            raise ConnectionError(f"{place.hostname}: {error.strerror or error}") from None


def _cached(repo: str, revision: str | None, inside: str, where: str, error: Exception | None = None) -> Place:
    """The same from the cache: refs/NAME holds a commit, snapshots/COMMIT its files."""
    from huggingface_hub import constants

    base = Path(constants.HF_HUB_CACHE) / f"datasets--{repo.replace('/', '--')}"
    for one in [revision] if revision else ["main", CONVERTED]:
        ref = base / "refs" / one
        folder = base / "snapshots" / (ref.read_text().strip() if ref.is_file() else one)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        paths = _choose(names, inside, where)
        if paths:
            return Place(repo, one, paths, folder)
    why = f"the hub cannot be reached ({_short(error)})" if error else "HF_HUB_OFFLINE is set"
    raise ResourceError(
        f"{where}: {why} and the data set is not in the cache {base.parent}.",
        hint=f"with a network: hf download --repo-type dataset {repo}; then run this again",
    )


def _choose(names: Sequence[str], inside: str, where: str) -> tuple[str, ...]:
    """The parquet files (else tar shards) below `inside`; one configuration only."""
    below = [n for n in names if not inside or n.startswith(inside.rstrip("/") + "/") or n == inside or fnmatch.fnmatch(n, inside)]
    for ending in (".parquet", ".tar"):
        found = sorted(name for name in below if name.endswith(ending))
        if not found:
            continue
        base = inside.rstrip("/") + "/" if any(name.startswith(inside.rstrip("/") + "/") for name in found) else ""
        below_base = [name[len(base) :] for name in found]
        tops = sorted({name.split("/", 1)[0] for name in below_base if "/" in name} - {"data"})
        configurations = [] if all(map(role, tops)) else tops
        if len(configurations) > 1 and "default" in configurations:
            return tuple(name for name in found if name.startswith(f"{base}default/"))
        if len(configurations) > 1:
            raise DataError(
                f"{where} has the configurations {', '.join(configurations)}.", hint=f"say which: {where.rstrip('/')}/{configurations[0]}"
            )
        return tuple(found)
    return ()


def _no_network(error: Exception) -> bool:
    from huggingface_hub import errors

    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.EntryNotFoundError):
        return isinstance(error, errors.LocalEntryNotFoundError)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"ConnectError", "ConnectTimeout", "TimeoutException", "NetworkError", "ConnectionError", "OfflineModeIsEnabled"})


def _refusal(error: Exception, where: str) -> Exception:
    from huggingface_hub import errors

    if _no_network(error):
        return ResourceError(f"{where}: the hub cannot be reached ({_short(error)}).", hint="check the network and run this again")
    if isinstance(error, errors.GatedRepoError):
        return ResourceError(f"{where} is gated.", hint="accept its terms on the hub, then: hf auth login")
    if isinstance(error, errors.RepositoryNotFoundError):
        return DataError(f"{where}: no such data set, or it is private.", hint="check the name; for private data: hf auth login")
    if isinstance(error, errors.RevisionNotFoundError):
        return DataError(f"{where}: no such revision.", hint="check what follows the @")
    return ResourceError(f"{where}: {_short(error)}", hint="run this again; what was downloaded is kept")


def _short(error: Exception | None) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__
