"""Weights by URI: fetched once into a cache, then opened from there.

    hf://owner/name[@revision][/file]     the hub, in transformers' own cache (HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN)
    timm://name.tag                       hf://timm/name.tag
    gs://vit_models/augreg/….npz          Google's public buckets (vit_models, bit_models), over https
    https://…                             any file
    builtin:NAME                          packaged with Vitrail

    …#sha256=HEX                          pinned: a file with another hash is deleted, and the command ends with exit code 5

Other files go to VITRAIL_CACHE, else XDG_CACHE_HOME/vitrail, else ~/.cache/vitrail. Offline
(`offline=`, VITRAIL_OFFLINE=1, HF_HUB_OFFLINE=1) nothing but the caches is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from vitrail.errors import CheckpointError, ResourceError, UsageError, VitrailError, nearest

__all__ = ["DEFAULT_MODEL", "builtin_names", "cache_folder", "default_model", "fetch", "is_offline"]

DEFAULT_MODEL = "builtin:ti-8"
BUILTIN = Path(__file__).parent / "builtin"
BUCKETS = ("vit_models", "bit_models", "big_vision")
WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
SIDECARS = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
HUB = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?:/(?P<file>(?:[\w.+-]+/)*[\w.+-]+\.[\w]+))?")
PIN = re.compile(r"#sha256=([0-9a-fA-F]{64})$")


def fetch(uri: str, *, offline: bool = False, sha256: str | None = None, max_bytes: int | None = None, progress: bool = True) -> Path:
    """The file that a URI means, downloaded unless it is in the cache.

    sha256      the file must have this hash (as must one pinned in the URI itself)
    max_bytes   refuse a larger download
    progress    False: silent (the hub's own bars obey HF_HUB_DISABLE_PROGRESS_BARS)
    """
    pinned = PIN.search(uri)
    if pinned:
        uri, sha256 = uri[: pinned.start()], sha256 or pinned[1]
    offline = offline or is_offline()
    if uri.startswith("builtin:"):
        path = _builtin(uri.removeprefix("builtin:"))
        if sha256 is not None:
            _unchanged(path, sha256, uri)
        return path
    if uri.startswith("timm://"):
        return _from_hub(f"hf://timm/{uri.removeprefix('timm://')}", uri, offline, sha256, max_bytes)
    if uri.startswith("hf://"):
        return _from_hub(uri, uri, offline, sha256, max_bytes)
    if uri.startswith("gs://"):
        return _from_web(_bucket_url(uri), uri, offline, sha256, max_bytes, progress)
    if uri.startswith(("https://", "http://")):
        return _from_web(uri, uri, offline, sha256, max_bytes, progress)
    scheme = uri.partition(":")[0]
    known = ["hf", "timm", "gs", "https", "builtin"]
    raise UsageError(
        f"{uri}: no weights are fetched from {scheme}:{nearest(scheme, known)}.", hint="hf://, timm://, gs://, https:// or builtin:"
    )


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE"))


def cache_folder() -> Path:
    """Where files from other places than the hub are kept."""
    if told := os.environ.get("VITRAIL_CACHE"):
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrail"


# ---- packaged ----


def builtin_names() -> list[str]:
    """The weights packaged with Vitrail."""
    return sorted(path.stem for path in BUILTIN.glob("*.safetensors"))


def default_model() -> str:
    """What answers where no weights are named: DEFAULT_MODEL, or what else is packaged."""
    packaged = builtin_names()
    if not packaged:
        raise UsageError(
            "no weights were named, and there is no model in the box of this installation.",
            hint="name weights first: a file, the folder of a run, or for example timm://vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        )
    return DEFAULT_MODEL if DEFAULT_MODEL.removeprefix("builtin:") in packaged else f"builtin:{packaged[0]}"


def _builtin(name: str) -> Path:
    if name not in builtin_names():
        packaged = ", ".join(f"builtin:{known}" for known in builtin_names()) or "none"
        raise UsageError(f"no weights are packaged as builtin:{name}{nearest(name, builtin_names())}.", hint=f"packaged: {packaged}")
    return BUILTIN / f"{name}.safetensors"


def _unchanged(path: Path, sha256: str, uri: str) -> None:
    from vitrail.runtime.disk import sha256_of

    if sha256_of(path) != sha256.lower():
        raise CheckpointError(f"{uri}: not the pinned SHA-256.", hint="another version of Vitrail packages other weights")


# ---- https and buckets ----


def _bucket_url(uri: str) -> str:
    """gs://bucket/path -> the public https address of the object."""
    bucket, _, path = uri.removeprefix("gs://").partition("/")
    if bucket not in BUCKETS:
        raise UsageError(f"{uri}: of Google's buckets only {', '.join(BUCKETS)} are read{nearest(bucket, BUCKETS)}.")
    if not path or path.endswith("/"):
        raise UsageError(f"{uri}: name a file in the bucket.", hint="gs://vit_models/imagenet21k/ViT-B_16.npz")
    endpoint = os.environ.get("VITRAIL_GS_ENDPOINT", "https://storage.googleapis.com").rstrip("/")
    return f"{endpoint}/{bucket}/{quote(path)}"


def _from_web(url: str, uri: str, offline: bool, sha256: str | None, max_bytes: int | None, progress: bool) -> Path:
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise UsageError(f"{parts.scheme}://{parts.hostname}…: no passwords in a URI; they would stand in every log.")
    name = re.sub(r"[^\w.+-]", "_", parts.path.rsplit("/", 1)[-1])[-120:] or "file"
    target = cache_folder() / "files" / hashlib.sha256(url.encode()).hexdigest()[:20] / name
    if offline and not target.exists():
        raise _absent(uri, target.parent)
    from vitrail.weights.download import download  # here and below, not above: asking for a name loads no torch

    return download(url, target, sha256=sha256, max_bytes=max_bytes, progress=progress)


def _absent(uri: str, cache: Path | str) -> ResourceError:
    return ResourceError(f"{uri}: not in the cache ({cache}), and the network is off.", hint="fetch it once online, or pass a local path")


# ---- the hub ----


def _from_hub(address: str, uri: str, offline: bool, sha256: str | None, max_bytes: int | None) -> Path:
    """The weights of a repository with the JSON files beside them, in the hub's own cache."""
    match = HUB.fullmatch(address)
    if match is None or ".." in address:
        raise UsageError(
            f"{uri}: not a model on the hub.", hint="hf://owner/name, hf://owner/name@revision, hf://owner/name/file.safetensors"
        )
    repository = _Repository(match["repo"], match["revision"], uri, offline, max_bytes)
    if match["file"]:
        path = repository.file(match["file"])
        if path is None:
            raise repository.absent(match["file"])
        folder = match["file"].rpartition("/")[0]
    else:
        path, folder = repository.weights(), ""
    for name in SIDECARS:
        repository.file(f"{folder}/{name}" if folder else name)
    if sha256 is not None:
        from vitrail.weights.download import check_hash

        check_hash(path, sha256, uri)
    return path


class _Repository:
    """One revision of one repository, through huggingface_hub: its cache, resumption and tokens."""

    def __init__(self, name: str, revision: str | None, uri: str, offline: bool, max_bytes: int | None) -> None:
        self.name, self.revision, self.uri = name, revision, uri
        self.offline, self.max_bytes = offline, max_bytes
        self.endpoint = os.environ.get("HF_ENDPOINT") or None
        self.cache = os.environ.get("HF_HUB_CACHE") or (f"{os.environ['HF_HOME']}/hub" if os.environ.get("HF_HOME") else None)

    def weights(self) -> Path:
        """The one file of weights that a repository has under its usual name."""
        for name in WEIGHTS:
            if path := self.file(name):
                return path
        if self.offline:
            raise self.absent("weights")
        if self.file("model.safetensors.index.json"):
            raise CheckpointError(
                f"{self.uri}: its weights are in several parts, which Vitrail does not join.", hint="name one file of the repository"
            )
        raise CheckpointError(f"{self.uri}: none of {', '.join(WEIGHTS)} is there.", hint=f"name the file: {self.uri}/FILE")

    def absent(self, what: str) -> VitrailError:
        """Not there, or not here while the network is off."""
        if self.offline:
            return _absent(self.uri, self.cache or "the hub's own")
        return CheckpointError(f"{self.uri}: the repository has no {what}.", hint="check the name on the hub's page")

    def file(self, name: str) -> Path | None:
        """A file of the repository, None where it has none of that name."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        if self.offline:  # reading the cache needs no client, whose set-up may ask the hub things of its own
            cached = try_to_load_from_cache(self.name, name, cache_dir=self.cache, revision=self.revision)
            return Path(cached) if isinstance(cached, str) else None
        try:
            if self.max_bytes is not None:
                self._check_size(name)
            path = hf_hub_download(self.name, name, revision=self.revision, cache_dir=self.cache, endpoint=self.endpoint)
        except errors.LocalEntryNotFoundError as error:
            raise self._unreachable(error) from None
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError:
            raise CheckpointError(f"{self.uri}: the repository is gated.", hint="accept its terms on the hub, then set HF_TOKEN") from None
        except errors.RevisionNotFoundError:
            raise CheckpointError(f"{self.uri}: there is no revision {self.revision!r}.", hint="check the name on the hub's page") from None
        except errors.RepositoryNotFoundError:
            raise CheckpointError(
                f"{self.uri}: there is no such repository, or it is private.", hint="check the name; private ones need HF_TOKEN"
            ) from None
        except VitrailError:
            raise
        except Exception as error:  # its HTTP library changed between versions, and with it the errors
            raise self._unreachable(error) from None
        return Path(path)

    def _check_size(self, name: str) -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        from vitrail.weights.download import room_for

        size = get_hf_file_metadata(hf_hub_url(self.name, name, revision=self.revision, endpoint=self.endpoint)).size
        room_for(size or 0, Path.home(), self.max_bytes, f"{self.uri} ({name})")

    def _unreachable(self, error: Exception) -> ResourceError:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ResourceError(
            f"{self.uri}: the hub cannot be reached ({first}).",
            hint="check the network; HF_ENDPOINT names a mirror, a local path needs none",
        )
