"""Answers as files: JSON lines, CSV or parquet, written in pieces so that a kill costs one piece.

    OUT.partial/job.json                    what is being answered by what
    OUT.partial/rows-<start>-<stop>         the answers to items start .. stop-1 (renamed into place when whole)
    OUT.partial/skipped-<start>-<stop>      the files among them that could not be read
    OUT, OUT.skipped.jsonl                  when all is done; the pieces are gone then

The names of the pieces are the whole state: the next one starts where the last one stops.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UsageError, missing_extra, nearest
from vitrail.runtime.disk import fsync_directory, write_atomic
from vitrail.runtime.faults import fault

__all__ = ["FORMATS", "Layout", "Pieces", "Row", "format_for"]

FORMATS = ("json", "csv", "parquet")
ENDINGS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_PIECE = re.compile(r"rows-(\d{12})-(\d{12})$")


@dataclass
class Row:
    """One image's answer: its classes, or its features."""

    image: str
    label: str | None = None
    classes: list[dict[str, Any]] | None = None
    features: np.ndarray | None = None

    def to_dict(self, labelled: bool = False) -> dict[str, Any]:
        named: dict[str, Any] = {"image": self.image}
        if labelled:
            named["label"] = self.label
        if self.features is not None:
            return {**named, "features": [float(v) for v in self.features]}
        return {**named, "classes": self.classes}


@dataclass(frozen=True)
class Layout:
    """How rows become bytes. `count` is the number of answers a row (top-k), or of features."""

    format: str
    count: int
    embed: bool = False
    labelled: bool = False

    def encode(self, rows: Sequence[Row]) -> bytes:
        return {"json": self._json, "csv": self._csv, "parquet": self._parquet}[self.format](rows)

    def header(self) -> bytes:
        """What stands once before all rows."""
        if self.format != "csv":
            return b""
        pairs = [f"feature_{k}" for k in range(self.count)] if self.embed else [
            name for k in range(1, self.count + 1) for name in (f"class_{k}", f"probability_{k}")
        ]  # fmt: skip
        return (",".join(["image", *(["label"] if self.labelled else []), *pairs]) + "\n").encode()

    def _json(self, rows: Sequence[Row]) -> bytes:
        return "".join(json.dumps(row.to_dict(self.labelled)) + "\n" for row in rows).encode()

    def _csv(self, rows: Sequence[Row]) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for row in rows:
            start = [safe(row.image), *([row.label or ""] if self.labelled else [])]
            if self.embed:
                writer.writerow([*start, *(repr(float(v)) for v in row.features)])  # type: ignore[union-attr]
            else:
                writer.writerow([*start, *(v for c in row.classes or () for v in (c["class"], f"{c['probability']:.6g}"))])
        return out.getvalue().encode()

    def _parquet(self, rows: Sequence[Row]) -> bytes:
        arrow, parquet = _pyarrow()
        columns: dict[str, Any] = {"image": arrow.array([safe(row.image) for row in rows], arrow.string())}
        if self.labelled:
            columns["label"] = arrow.array([row.label for row in rows], arrow.string())
        if self.embed:
            columns["features"] = arrow.array([row.features for row in rows], arrow.list_(arrow.float32()))
        else:
            answers = [row.classes or [] for row in rows]
            columns["classes"] = arrow.array([[c["class"] for c in one] for one in answers], arrow.list_(arrow.string()))
            columns["probabilities"] = arrow.array([[c["probability"] for c in one] for one in answers], arrow.list_(arrow.float32()))
        out = io.BytesIO()
        parquet.write_table(arrow.table(columns), out)
        return out.getvalue()

    def join(self, pieces: Iterable[Path], target: Path) -> None:
        """All pieces, in order, as one file."""
        if self.format == "parquet":
            _, parquet = _pyarrow()
            writer = None
            for piece in pieces:
                table = parquet.read_table(piece)
                writer = writer or parquet.ParquetWriter(target, table.schema)
                writer.write_table(table)
            if writer:
                writer.close()
            return
        with open(target, "wb") as out:
            out.write(self.header())
            for piece in pieces:
                with open(piece, "rb") as rows:
                    shutil.copyfileobj(rows, out, 1 << 20)


def safe(name: str) -> str:
    """A file name with bytes that are no UTF-8 -> text that can be written."""
    return name.encode("utf-8", "backslashreplace").decode()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "data", "Writing parquet") from None
    return pyarrow, pyarrow.parquet


def format_for(path: Path, said: str | None) -> str:
    """The format by name, or by the file's ending."""
    name = said or ENDINGS.get(path.suffix.lower())
    if name in FORMATS:
        return str(name)
    if said:
        raise UsageError(f"no such format {said!r}{nearest(said, FORMATS)}.")
    raise UsageError(f"{path}: the ending does not say which format.", hint="end it in .jsonl, .csv or .parquet, or pass --format")


class Pieces:
    """The file `path` on its way: what is done already, and where the next piece goes."""

    def __init__(self, path: Path, layout: Layout, job: dict[str, Any], *, overwrite: bool = False) -> None:
        self.path, self.layout = path, layout
        self.folder = path.with_name(path.name + ".partial")
        self.skipped_path = path.with_name(path.name + ".skipped.jsonl")
        if overwrite:
            shutil.rmtree(self.folder, ignore_errors=True)
            path.unlink(missing_ok=True)
            self.skipped_path.unlink(missing_ok=True)
        if path.exists():
            raise UsageError(f"{path} exists.", hint="--overwrite, or another --out")
        if not path.parent.is_dir():
            raise UsageError(f"the folder {path.parent} does not exist.", hint=f"mkdir -p '{path.parent}'")
        self._claim(job)

    def _claim(self, job: dict[str, Any]) -> None:
        """Begin, or go on with the same job; half a result of another job is refused."""
        self.folder.mkdir(exist_ok=True)
        note = self.folder / "job.json"
        if note.exists():
            before = json.loads(note.read_text("utf-8"))
            changed = [key for key in job if before.get(key) != job[key]]
            if changed:
                raise UsageError(
                    f"{self.folder} holds part of another job (different: {', '.join(changed)}).",
                    hint="--overwrite starts again, another --out leaves it alone",
                )
        else:
            write_atomic(note, json.dumps(job, indent=1).encode())

    def pieces(self) -> list[tuple[int, int, Path]]:
        """(start, stop, path) of the whole pieces that follow one another from the first item."""
        found = sorted((int(m[1]), int(m[2]), path) for path in self.folder.iterdir() if (m := _PIECE.match(path.name)))
        chain: list[tuple[int, int, Path]] = []
        for start, stop, path in found:
            if not chain or start == chain[-1][1]:
                chain.append((start, stop, path))
        return chain

    def spans(self) -> set[tuple[int, int]]:
        """(start, stop) of every whole piece, in whatever order they were written."""
        return {(int(m[1]), int(m[2])) for path in self.folder.iterdir() if (m := _PIECE.match(path.name))}

    def position(self, start: int) -> int:
        """The first item that is still to be answered."""
        done = self.pieces()
        return done[-1][1] if done else start

    def write(self, start: int, stop: int, rows: Sequence[Row], skipped: Sequence[dict[str, Any]]) -> None:
        """One piece; the skipped files first, so that a piece that is there has them."""
        span = f"{start:012d}-{stop:012d}"
        if skipped:
            write_atomic(self.folder / f"skipped-{span}", "".join(json.dumps(s) + "\n" for s in skipped).encode())
        write_atomic(self.folder / f"rows-{span}", self.layout.encode(rows) if rows else b"")
        fault("predict.piece")

    def skipped_before(self) -> int:
        """How many files earlier runs of this job passed over."""
        return sum(len(path.read_bytes().splitlines()) for path in self._skipped_pieces())

    def _skipped_pieces(self) -> list[Path]:
        return [path for s, t, _ in self.pieces() if (path := self.folder / f"skipped-{s:012d}-{t:012d}").exists()]

    def finish(self) -> int:
        """Join the pieces under the final name, and put them away. Returns how many files were skipped in all."""
        draft = self.folder / "joined"
        self.layout.join((path for _, _, path in self.pieces() if path.stat().st_size), draft)
        if not draft.exists():  # not one row
            draft.write_bytes(self.layout.encode([]))
        skipped = self._skipped_pieces()
        count = self.skipped_before()
        if skipped:
            lists = b"".join(path.read_bytes() for path in skipped)
            write_atomic(self.skipped_path, lists)
        os.replace(draft, self.path)
        fsync_directory(self.path.parent)
        shutil.rmtree(self.folder, ignore_errors=True)
        return count
