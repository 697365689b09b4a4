"""What can be wrong with a data set before any pixel is read, and who may overrule it.

Readers collect problems while they list; `refuse` turns those that were not allowed into
one DataError. `vitrail data check` opens with everything allowed and prints them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.data.names import shown
from vitrail.errors import DataError, UsageError, nearest

__all__ = ["KINDS", "Problem", "Problems", "check_allow", "refuse"]

# kind -> what it means; the names are what `allow=` and `--allow` take
KINDS = {
    "missing-file": "named in the table, but there is no such file",
    "missing-label": "no label",
    "missing-split": "no split named, where other rows name one",
    "missing-image": "a label without an image",
    "unknown-class": "the label is not one of the declared classes",
    "duplicate-id": "listed more than once",
    "empty-class": "a class without images",
    "class-mismatch": "the splits do not have the same classes",
    "name-collision": "two names that are the same after Unicode normalisation",
    "outside-root": "a link that leads out of the data set",
    "dangling-link": "a link to nothing",
    "truncated-shard": "the shard ends early",
    "extra-file": "an image that the table does not name, or that lies beside the class folders",
    "unsafe-name": "a name that climbs out of the archive; it is used as a key, never as a path",
}
# a sample or two lost among thousands is reported, not refused; over this share it is refused
BOUNDED = {"missing-image", "duplicate-id", "missing-label", "truncated-shard"}
BOUND = 0.01
EXAMPLES = 20
# only ever reported
HARMLESS = {"dangling-link", "extra-file", "unsafe-name"}


@dataclass(frozen=True)
class Problem:
    """One kind of problem: how often, and the first few places."""

    kind: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.examples) >= EXAMPLES else ""
        return f"{self.kind}: {self.count:,} ({KINDS[self.kind]}): {', '.join(self.examples)}{more}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Problems:
    """Counts problems by kind while a reader lists; keeps the first names of each."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}

    def add(self, kind: str, where: str, count: int = 1, *, plain: bool = False) -> None:
        """`where` is a name from the data, escaped before it is kept; `plain`: a sentence that needs no escape."""
        assert kind in KINDS, kind
        entry = self._found.setdefault(kind, [0, []])
        entry[0] += count
        if len(entry[1]) < EXAMPLES:
            entry[1].append(where if plain else shown(where))

    def found(self) -> tuple[Problem, ...]:
        return tuple(Problem(kind, count, tuple(names)) for kind, (count, names) in self._found.items())


def check_allow(allow: str | Collection[str]) -> frozenset[str]:
    """The kinds named by `allow` ('all', one name, or several)."""
    names = {allow} if isinstance(allow, str) else set(allow)
    for name in names - {"all"}:
        if name not in KINDS:
            raise UsageError(f"allow={name!r} is no kind of data problem{nearest(name, KINDS)}.")
    return frozenset(KINDS) if "all" in names else frozenset(names)


def refuse(problems: Iterable[Problem], total: int, allow: frozenset[str], name: str, tolerant: bool) -> None:
    """DataError listing every problem that is not allowed; `tolerant` readers bear up to 1 % of the bounded kinds."""
    fatal = [p for p in problems if p.kind not in allow | HARMLESS and not (tolerant and p.kind in BOUNDED and p.count <= BOUND * total)]
    if fatal:
        raise DataError(
            f"{name} has problems that would change what is trained on:\n  " + "\n  ".join(map(str, fatal)),
            hint=f"vitrail data check '{name}' lists everything; fix it, or go on without it: {_overrule(fatal)}",
        )


def _overrule(fatal: Iterable[Problem]) -> str:
    """How to allow these, as options of the verbs that have them and as part of the address for all others."""
    kinds = [problem.kind for problem in fatal]
    allowed = [kind for kind in kinds if kind != "outside-root"]
    options = [f"--allow {kind}" for kind in allowed] + ["--follow-links"] * ("outside-root" in kinds)
    query = [f"allow={','.join(allowed)}"] * bool(allowed) + ["follow-links=yes"] * ("outside-root" in kinds)
    return f"{' '.join(options)}, or in the address: ?{'&'.join(query)}"
