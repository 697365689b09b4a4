"""A folder of images: one sub-folder a class, with or without train, val and test above them.

    root/cat/1.jpg                      classes at the top
    root/train/cat/1.jpg, root/val/…    splits, then classes
    root/1.jpg                          no classes (labelled=False), or one list of files

Every real file is listed once. Links that stay below the root are followed unless what
they point at is listed anyway; a link that leads out is refused unless the caller said
`follow_links`; a loop ends where it began. Names are compared, sorted and reported in
Unicode's composed form, so that the same folder has the same order on every platform.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.classes import compare_splits, declared
from vitrail.data.files import LocalFiles, is_image
from vitrail.data.names import Names, composed, shown
from vitrail.data.problem import Problems
from vitrail.data.source import Listing, Options, Record, read_probes
from vitrail.data.split import by_role, role
from vitrail.errors import DataError

__all__ = ["Folder", "ImageFiles", "open_files"]


@dataclass(eq=False)
class ImageFiles(Listing):
    """Samples that are files of their own, below one folder or at absolute paths."""

    files: Any = field(default_factory=LocalFiles)
    root: str = ""
    paths: Names | None = None  # where names on disk are not the ids

    def path(self, i: int) -> str:
        name = self.ids[i] if self.paths is None else self.paths[i]
        return f"{self.root}/{name}" if self.root and not name.startswith("/") else name

    def read(self, i: int) -> Record:
        return Record(self.files.read(self.path(i)), self.label(i), self.id(i))

    def sizes(self) -> np.ndarray:
        """By threads where there are many: on a network disk each answer is a journey."""
        if len(self) < 4096:
            return np.fromiter(map(self._size, range(len(self))), np.int64, len(self))
        parts = np.array_split(np.arange(len(self)), 64)
        with ThreadPoolExecutor(16) as pool:
            return np.concatenate(list(pool.map(lambda part: np.array([self._size(int(i)) for i in part], np.int64), parts)))

    def _size(self, i: int) -> int:
        try:
            return int(self.files.size(self.path(i)))
        except OSError:
            return -1  # gone since it was listed; reading it will say so

    def probes(self) -> Iterable[bytes]:
        return read_probes(self) if self.files.local else ()


@dataclass
class Tree:
    """Images below one folder: top-level folder -> their names, and those that lie beside the folders."""

    classes: dict[str, list[str]]
    loose: list[str]


class Folder:
    """The reader of one folder, local or in an object store."""

    tolerant = False

    def __init__(self, files: Any, path: str, name: str) -> None:
        self.files, self.name = files, name
        self.path = path if path == "/" else path.rstrip("/")
        if files.local:
            self.path = os.path.realpath(self.path)  # the root itself may be a link
        self._folders: dict[str, str] | None = None

    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits())

    def _splits(self) -> dict[str, str]:
        """split -> its folder. 'train' beside folders of images is a class (of vehicles), not a split."""
        if self._folders is None:
            folders = self.files.folders(self.path)
            named = by_role({folder: role(folder) for folder in folders if role(folder)})
            others = [folder for folder in folders if not role(folder)]
            classes = any(self.files.has_image(f"{self.path}/{folder}") for folder in others)
            self._folders = {} if classes else named
        return self._folders

    def open(self, split: str | None, options: Options) -> Listing:
        problems = Problems()
        inside = self._splits()[split] if split else ""
        top = f"{self.path}/{inside}" if inside else self.path
        if self.files.local:
            tree = _Walk(self.path, top, options.follow_links, problems).tree()
        else:
            tree = _grow(self.files.walk(top))
        prefix = f"{inside}/" if inside else ""
        if not options.labelled or (inside and not tree.classes):
            names = [name for group in tree.classes.values() for name in group] + tree.loose
            names.sort(key=_order)
            return self._listing(split, (), np.full(len(names), -1), [prefix + name for name in names], problems)
        classes = self._classes(split, tree, options, problems)
        names, labels = _label(tree, classes, problems)
        _loose(tree.loose, len(names), problems, self.name)
        return self._listing(split, classes, labels, [prefix + name for name in names], problems)

    def _classes(self, split: str | None, tree: Tree, options: Options, problems: Problems) -> tuple[str, ...]:
        """The names that number the labels: those declared, else those of all splits (which have to agree)."""
        mine = sorted({composed(name) for name in tree.classes}, key=_order)
        if options.classes is not None:
            return options.classes
        named = declared(self.files, self.path)
        if named is not None and not set(named).isdisjoint(mine):  # else some other document of that name
            return named
        if not split:
            return tuple(mine)
        by_split = {split: mine}
        for other, folder in self._splits().items():
            found = self.files.folders(f"{self.path}/{folder}")
            if other != split and found:
                by_split[other] = sorted({composed(name) for name in found}, key=_order)
        return compare_splits(by_split, split, problems)

    def _listing(self, split: str | None, classes: Sequence[str], labels: np.ndarray, real: list[str], problems: Problems) -> ImageFiles:
        ids = [composed(name) for name in real]
        _collisions(ids, problems)
        paths = Names(real) if ids != real else None
        return ImageFiles(
            self.name, split, tuple(classes), labels, Names(ids), problems=problems.found(), files=self.files,
            root=self.path, paths=paths,
        )  # fmt: skip


def open_files(paths: Sequence[Any], name: str = "files") -> ImageFiles:
    """A list of image files, without labels, in the order given."""
    real = [os.fspath(path) for path in paths]
    missing = [path for path in real if not os.path.isfile(path)]
    if missing:
        more = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
        raise DataError(f"no such file: {', '.join(map(shown, missing[:5]))}{more}.")
    names = Names(os.path.abspath(path).replace(os.sep, "/") for path in real)
    return ImageFiles(name, None, (), np.full(len(real), -1), names)


# ---------------------------------------------------------------- names


def _order(name: str) -> bytes:
    """Sort key: the composed form's UTF-8, which no locale or file system changes."""
    return composed(name).encode("utf-8", "surrogateescape")


def _collisions(ids: list[str], problems: Problems) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            problems.add("name-collision", name)
        seen.add(name)


def _label(tree: Tree, classes: Sequence[str], problems: Problems) -> tuple[list[str], np.ndarray]:
    """File names class by class, and their labels; a folder that is not among the classes is left out."""
    number = {name: k for k, name in enumerate(classes)}
    names: list[str] = []
    labels: list[np.ndarray] = []
    counts = np.zeros(len(classes), np.int64)
    folders: dict[str, str] = {}
    for folder in sorted(tree.classes, key=_order):
        name, group = composed(folder), sorted(tree.classes[folder], key=_order)
        if name in folders:
            problems.add("name-collision", folder)
        folders[name] = folder
        if name not in number:
            problems.add("unknown-class", name, len(group))
            continue
        names += group
        labels.append(np.full(len(group), number[name]))
        counts[number[name]] += len(group)
    for name in folders:
        if name in number and not counts[number[name]]:
            problems.add("empty-class", name)
    return names, np.concatenate([np.empty(0, np.int64), *labels]).astype(np.int64)


def _loose(names: list[str], listed: int, problems: Problems, name: str) -> None:
    """Images beside the class folders: a few are an overview picture, many are unlabelled data."""
    if names and not listed:
        raise DataError(
            f"{name}: {len(names):,} images, but no sub-folder to name their classes.",
            hint="one folder a class, or a csv with the columns path,label; without labels: labelled=False",
        )
    for one in names:
        problems.add("extra-file" if len(names) <= 0.01 * listed or len(names) == 1 else "missing-label", one)


def _grow(names: Any) -> Tree:
    """Relative names of an object store, which has no folders and no links, as a tree."""
    tree = Tree({}, [])
    for name in names:
        if is_image(name) and not any(part.startswith(".") for part in name.split("/")):
            top, slash, _ = name.partition("/")
            (tree.classes.setdefault(top, []) if slash else tree.loose).append(name)
    return tree


# ---------------------------------------------------------------- walking a disk


class _Walk:
    """Lists images below `top`: first everything real, then what links add."""

    def __init__(self, root: str, top: str, follow_links: bool, problems: Problems) -> None:
        self.root, self.top, self.follow, self.problems = root, os.path.realpath(top), follow_links, problems
        self.scanned: set[str] = set()  # real folders
        self.linked: set[str] = set()  # real files that a link added
        self.links: list[tuple[str, str]] = []
        self.result = Tree({}, [])

    def tree(self) -> Tree:
        if self._outside(self.top) and not self.follow:  # the split's folder is itself a link
            self.problems.add("outside-root", self.top)
            return self.result
        self._scan(self.top, "")
        while self.links:
            links, self.links = sorted(self.links, key=lambda link: os.fsencode(link[0])), []
            for path, name in links:
                self._follow(path, name)
        return self.result

    def _scan(self, folder: str, name: str) -> None:
        """`folder` is a real path, `name` how it is reached from the top ('' or 'cat/more/')."""
        stack = [(folder, name)]
        while stack:
            folder, name = stack.pop()
            if folder in self.scanned:
                continue
            self.scanned.add(folder)
            group = self._group(name)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.startswith(".") or entry.name == "__MACOSX":
                            continue
                        if entry.is_symlink():
                            self.links.append((entry.path, name + entry.name))
                        elif entry.is_dir(follow_symlinks=False):
                            stack.append((entry.path, f"{name}{entry.name}/"))
                        elif is_image(entry.name) and entry.is_file(follow_symlinks=False):
                            group.append(name + entry.name)
            except OSError as error:
                raise DataError(f"{shown(folder)} cannot be read: {error.strerror}.", hint="check its permissions") from None

    def _group(self, name: str) -> list[str]:
        return self.result.classes.setdefault(name.split("/", 1)[0], []) if name else self.result.loose

    def _follow(self, path: str, name: str) -> None:
        target = os.path.realpath(path)
        if not os.path.exists(path):
            if not name.rpartition("/")[2].startswith("."):
                self.problems.add("dangling-link", name)
        elif os.path.isdir(path):
            if target in self.scanned or self.top.startswith(target.rstrip("/") + "/"):
                return  # listed anyway, or a loop to a folder above
            if self._allowed(target, name):
                self._scan(target, name + "/")
        elif is_image(name) and self._allowed(target, name):
            folder, base = os.path.split(target)
            listed = folder in self.scanned and is_image(base) and not base.startswith(".")
            if not listed and target not in self.linked:
                self.linked.add(target)
                self._group(name.rpartition("/")[0] + "/" if "/" in name else "").append(name)

    def _allowed(self, target: str, name: str) -> bool:
        if self._outside(target) and not self.follow:
            self.problems.add("outside-root", name)
            return False
        return True

    def _outside(self, target: str) -> bool:
        return target != self.root and not target.startswith(self.root.rstrip("/") + "/")
