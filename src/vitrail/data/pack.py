"""`vitrail data pack`: any source as parquet or tar shards that read fast in any order.

    DST/pack.json                       the plan: where from, in which order, how many images a shard
    DST/train-00000-of-00042.parquet    row groups of about 16 MB, class names in the schema
    DST/train-00000-of-00042.tar        key.jpg + key.cls (or key.json), classes.json beside them

The plan is a function of the source and the options, and the place of every image follows from
it; so a run that was killed goes on with the first shard that is missing. A shard is written
under a hidden name, synced, read back through the same reader that training uses, compared
image by image, and only then renamed. Images that cannot be decoded are left out and named.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data import decode
from vitrail.data.encode import encode_jpeg, encode_png
from vitrail.data.files import LocalFiles
from vitrail.data.header import EXTENSIONS
from vitrail.data.names import shown
from vitrail.data.order import EpochOrder
from vitrail.data.resize import resize
from vitrail.data.source import Listing, Options, Source, list_splits, open_source
from vitrail.data.split import parse, shuffled
from vitrail.errors import DataError, DecodeError, ResourceError, UsageError, missing_extra
from vitrail.runtime.cores import cores
from vitrail.runtime.disk import fsync_directory, write_atomic
from vitrail.runtime.lock import RunLock
from vitrail.runtime.progress import Progress, duration, quantity

__all__ = ["PackResult", "pack"]

GROUP_BYTES = 16 << 20  # a window of 16 row groups stays in 256 MB
BOUND = 0.01  # more images than this left out, and the source is the problem
_LOSSLESS = ("PNG", "BMP", "GIF", "TIFF", "PPM", "array")


@dataclass
class PackResult:
    path: str
    images: dict[str, int]  # split -> images written
    shards: dict[str, int]
    kept: int  # shards that an earlier run had finished
    left_out: list[str]  # images that could not be decoded, with the reason
    bytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        splits = ", ".join(f"{split} {n:,} images in {_shards(self.shards[split])}" for split, n in self.images.items())
        lines = [f"{self.path}: {splits}, {quantity(self.bytes, 'B')} in {duration(self.seconds)}"]
        lines += [f"  {_shards(self.kept)} of an earlier run kept"] if self.kept else []
        lines += [f"  left out {len(self.left_out):,}:"] if self.left_out else []
        return "\n".join(lines + [f"    {one}" for one in self.left_out[:20]])


def _shards(count: int) -> str:
    return f"{count:,} shard{'s' if count != 1 else ''}"


class Packed(NamedTuple):
    """One image ready to be written."""

    data: bytes
    label: int | tuple[int, ...]
    name: str
    ending: str


@dataclass(frozen=True)
class Plan:
    """What decides every byte of a pack; a later run has to have the same."""

    source: str
    fingerprints: dict[str, str]
    to: str
    resize: int | None
    quality: int
    seed: int
    shuffle: bool
    per_shard: dict[str, int]
    shards: dict[str, int]


@dataclass
class Done:
    """Shards that are finished: name -> [bytes, images], and the images left out of them."""

    shards: dict[str, list[int]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)


def pack(
    where: Any,
    dst: str | os.PathLike[str],
    *,
    split: str | None = None,
    to: str = "parquet",
    resize: int | None = None,
    quality: int = 92,
    shard_mb: int = 256,
    seed: int = 0,
    shuffle: bool = True,
    allow: str | Collection[str] = (),
    workers: int | None = None,
    progress: bool = True,
    **options: Any,
) -> PackResult:
    """Write `where` as shards in `dst`; see the top of this file. `options` are those of `open_source`."""
    start = time.perf_counter()
    if to not in ("parquet", "tar"):
        raise UsageError(f"to={to!r}; shards are 'parquet' or 'tar'.")
    if to == "parquet":
        _pyarrow()
    sources = _open(where, split, allow, options)
    folder = _folder(dst)
    with RunLock(folder), ThreadPoolExecutor(workers or min(32, cores())) as pool, Progress(quiet=not progress) as line:
        plan = _agree(folder, _plan(sources, where, to, resize, quality, shard_mb, seed, shuffle))
        done = _finished(folder)
        kept = len(done.shards)
        if to == "tar":
            classes = next(iter(sources.values())).classes
            write_atomic(folder / "classes.json", json.dumps(classes, ensure_ascii=False, indent=0).encode())
        for name, source in sources.items():
            _pack_split(folder, name, source, plan, done, pool, line)
    images = {name: sum(done.shards[s][1] for s in _shard_names(plan, name)) for name in sources}
    left_out = [one for shard in sorted(done.left_out) for one in done.left_out[shard]]
    size = sum(size for size, _ in done.shards.values())
    return PackResult(str(folder), images, dict(plan.shards), kept, left_out, size, time.perf_counter() - start)


def _folder(dst: str | os.PathLike[str]) -> Path:
    folder = Path(dst)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{shown(str(dst))} is a file; the shards need a folder.", hint="give a new folder") from None
    except OSError as error:
        raise ResourceError(f"{shown(str(dst))} cannot be made: {error.strerror}.", hint="choose another folder") from None
    return folder


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "data", "Writing parquet files") from None
    return pyarrow


def _open(where: Any, split: str | None, allow: str | Collection[str], options: dict[str, Any]) -> dict[str, Source]:
    """split name in the new files -> source."""
    arrays = not isinstance(where, str | os.PathLike)
    if split or arrays:
        name = parse(split)[0].name or "train"
        return {name: open_source(where, split, allow=allow, **options)}
    return {
        name or "train": open_source(where, name, allow=allow, **options)
        for name in list_splits(where, image=options.get("image"), label=options.get("label")) or [None]
    }


# ---------------------------------------------------------------- the plan


def _plan(sources: dict[str, Source], where: Any, to: str, size: int | None, quality: int, shard_mb: int, seed: int, shuffle: bool) -> Plan:
    per_shard, shards = {}, {}
    for name, source in sources.items():
        tried = [_packed_bytes(source, i, size, quality) for i in np.linspace(0, len(source) - 1, min(64, len(source))).astype(int)]
        usual = float(np.mean([n for n in tried if n] or [1])) + (2048 if to == "tar" else 16)  # and its headers
        shards[name] = max(1, min(len(source), round(len(source) * usual / (shard_mb * 1e6))))
        per_shard[name] = -(-len(source) // shards[name])
        shards[name] = -(-len(source) // per_shard[name])  # rounding up may have emptied the last
    name = where if isinstance(where, str) else str(where) if isinstance(where, os.PathLike) else "arrays"
    fingerprints = {split: source.fingerprint for split, source in sources.items()}
    return Plan(name, fingerprints, to, size, quality, seed, shuffle, per_shard, shards)


def _packed_bytes(source: Source, i: int, size: int | None, quality: int) -> int:
    packed = _prepare(source, int(i), size, quality)
    return len(packed.data) if isinstance(packed, Packed) else 0


def _agree(folder: Path, plan: Plan) -> Plan:
    """Store the plan, or go on with the stored one if it is the same."""
    path = folder / "pack.json"
    if path.exists():
        stored = json.loads(path.read_text())["plan"]
        differ = [key for key, value in asdict(plan).items() if stored.get(key) != value and key != "source"]
        if differ:
            raise UsageError(
                f"{folder} was packed from other data or with other options ({', '.join(differ)}).",
                hint="choose another folder, or empty this one",
            )
        return plan
    strangers = [name for name in os.listdir(folder) if not name.startswith(".")]
    if strangers:
        raise UsageError(f"{folder} is not empty ({shown(strangers[0])}).", hint="give a new folder")
    _store(folder, plan, Done())
    return plan


def _store(folder: Path, plan: Plan, done: Done) -> None:
    write_atomic(folder / "pack.json", json.dumps({"plan": asdict(plan), "done": asdict(done)}, indent=1).encode())


def _finished(folder: Path) -> Done:
    """The shards that pack.json knows and that are still there in full; drafts of a killed run are removed."""
    stored = json.loads((folder / "pack.json").read_text())["done"]
    done = Done()
    for name, (size, images) in stored["shards"].items():
        path = folder / name
        if path.is_file() and path.stat().st_size == size:
            done.shards[name] = [size, images]
            if name in stored["left_out"]:
                done.left_out[name] = stored["left_out"][name]
    for draft in folder.glob(".draft-*"):
        draft.unlink()
    return done


def _shard_names(plan: Plan, split: str) -> list[str]:
    count = plan.shards[split]
    return [f"{split}-{k:05d}-of-{count:05d}.{plan.to}" for k in range(count)]


def _order(source: Source, plan: Plan) -> np.ndarray:
    """Which image lies where. A source of shards is mixed within windows of them, so that each is read once."""
    if not plan.shuffle:
        return np.arange(len(source))
    if source.shards is not None and len(source.shards) > 1:
        return EpochOrder(len(source), plan.seed, source.shards, window=64)(np.arange(len(source)))
    return shuffled(source.labels, plan.seed)


# ---------------------------------------------------------------- one split, one shard


def _pack_split(folder: Path, split: str, source: Source, plan: Plan, done: Done, pool: ThreadPoolExecutor, line: Progress) -> None:
    order = _order(source, plan)
    names, per = _shard_names(plan, split), plan.per_shard[split]
    todo = sum(min(per, len(order) - k * per) for k, name in enumerate(names) if name not in done.shards)
    start, count = time.perf_counter(), 0
    for k, name in enumerate(names):
        if name in done.shards:
            continue
        places = order[k * per : (k + 1) * per]
        images: list[Packed] = []
        left_out: list[str] = []
        for one in _ahead(source, places, plan, pool):
            (images if isinstance(one, Packed) else left_out).append(one)  # type: ignore[arg-type]
            count += 1
            if count % 64 == 0:
                seconds = time.perf_counter() - start
                left = duration(seconds / count * (todo - count))
                line.show(f"packing {split} {count:,} of {todo:,}, {count / seconds:,.0f} images/s, {left} left")
        _bound(source, left_out, done)
        size = _write(folder, name, images, k * per, source, plan)
        done.shards[name] = [size, len(images)]
        if left_out:
            done.left_out[name] = left_out
        _store(folder, plan, done)


def _bound(source: Source, left_out: Sequence[str], done: Done) -> None:
    total = len(left_out) + sum(map(len, done.left_out.values()))
    if total > max(10, BOUND * len(source)):
        raise DataError(
            f"{source.name}: {total:,} images cannot be decoded, for example {'; '.join(left_out[:5])}.",
            hint=f"vitrail data check '{source.name}' lists them all; repair or remove them first",
        )


def _ahead(source: Source, places: np.ndarray, plan: Plan, pool: ThreadPoolExecutor) -> Iterator[Packed | str]:
    """Images in order, prepared by threads a little ahead of need."""
    waiting: deque[Future[Packed | str]] = deque()
    for i in places:
        waiting.append(pool.submit(_prepare, source, int(i), plan.resize, plan.quality))
        if len(waiting) > 128:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _prepare(source: Source, i: int, size: int | None, quality: int) -> Packed | str:
    """Read, decode and, where it is larger, resize one image; or say why it is left out."""
    try:
        data, label, name = source.read(i)
        kind = "array" if isinstance(data, np.ndarray) else decode.probe(data, where=name)[0]
        image = decode.pixels(data, where=name) if size or kind == "array" else decode.decode(data, where=name, min_size=64)  # type: ignore[arg-type]
    except DecodeError as error:
        return shown(error.message)
    short = min(image.shape[:2])
    if size and short > size:
        target = tuple(max(1, round(side * size / short)) for side in image.shape[:2])
        image = resize(image, target, "bicubic", antialias=True)  # type: ignore[arg-type]
    elif isinstance(data, bytes):
        ending = next(end for end, format in EXTENSIONS.items() if format == kind)
        return Packed(data, label, name, ending)
    if kind in _LOSSLESS:
        grey = isinstance(data, np.ndarray) and (data.ndim == 2 or data.shape[2] == 1)
        return Packed(encode_png(image[:, :, 0] if grey else image), label, name, ".png")
    return Packed(encode_jpeg(image, quality), label, name, ".jpg")


def _write(folder: Path, name: str, images: list[Packed], first: int, source: Source, plan: Plan) -> int:
    draft, final = folder / f".draft-{name}", folder / name
    try:
        with open(draft, "wb") as file:
            if plan.to == "tar":
                _write_tar(file, images, first)
            else:
                _write_parquet(file, images, source)
            file.flush()
            os.fsync(file.fileno())
        _verify(draft, images, source, plan.to)
        os.rename(draft, final)
        fsync_directory(folder)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise ResourceError(f"{folder}: no space left for {name}.", hint="make room and run this again: it goes on here") from None
        raise ResourceError(
            f"{folder}: {name} cannot be written: {error.strerror or error}.", hint="run this again: it goes on here"
        ) from None
    return final.stat().st_size


def _write_parquet(file: Any, images: list[Packed], source: Source) -> None:
    pa = _pyarrow()
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    label = pa.list_(pa.int64()) if source.multilabel else pa.int64()
    names = {"names": list(source.classes), "_type": "ClassLabel"}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    columns = [("image", image)]
    if source.classes:
        features["label"] = {"feature": names, "_type": "Sequence"} if source.multilabel else names
        columns.append(("label", label))
    schema = pa.schema(columns, {"huggingface": json.dumps({"info": {"features": features}}, ensure_ascii=False)})
    quiet = {"compression": "NONE", "use_dictionary": False, "write_statistics": ["label"] if source.classes else False}
    with pa.parquet.ParquetWriter(file, schema, **quiet) as writer:
        for group in _row_groups(images):
            rows = {"image": [{"bytes": one.data, "path": _path(one)} for one in group]}
            if source.classes:
                rows["label"] = [list(one.label) if isinstance(one.label, tuple) else one.label for one in group]  # type: ignore[misc]
            writer.write_table(pa.Table.from_pydict(rows, schema), row_group_size=len(group))


def _path(image: Packed) -> str:
    return os.path.splitext(shown(image.name))[0] + image.ending


def _row_groups(images: list[Packed]) -> Iterator[list[Packed]]:
    group: list[Packed] = []
    size = 0
    for image in images:
        group.append(image)
        size += len(image.data)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group or not images:
        yield group


def _write_tar(file: Any, images: list[Packed], first: int) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for i, image in enumerate(images, first):
            several = isinstance(image.label, tuple)
            text = json.dumps({"labels": image.label}) if several else str(image.label)
            members = [(image.ending, image.data)]
            if several or image.label != -1:
                members.append((".json" if several else ".cls", text.encode()))
            for ending, data in members:
                info = tarfile.TarInfo(f"{i:09d}{ending}")  # time 0, owner 0: the same bytes every time
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def _verify(path: Path, images: list[Packed], source: Source, to: str) -> None:
    """Read the shard back as training will, and compare every image and label."""
    again = _reopen(path, source, to)
    wrong = len(again) != len(images)
    for i, image in enumerate(images if not wrong else []):
        record = again.read(i)
        wrong |= record.data != image.data or record.label != image.label
    if wrong:
        path.unlink()
        raise ResourceError(f"{path.name} does not read back as it was written.", hint="check the disk, and run this again")


def _reopen(path: Path, source: Source, to: str) -> Listing:
    from vitrail.data.parquet import Parquet
    from vitrail.data.tar import Tar

    options = Options(labelled=bool(source.classes), classes=source.classes or None)
    return (Tar if to == "tar" else Parquet)(LocalFiles(), [str(path)], path.name, {}).open(None, options)
