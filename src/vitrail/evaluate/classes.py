"""Which of a data set's classes each output of a model stands for, by name or by a map.

    owner (M,) int64: output m stands for class owner[m] of the data, -1: for none of them

The same names in the same order need no owner. Else names decide: a data set whose classes
are some of the model's (Imagenette out of 1000) is measured on these; one with other names
needs a map (ObjectNet-style: several outputs may stand for one class) or a new head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.errors import DataError, UsageError, nearest

__all__ = ["owner_by_map", "owner_by_name", "read_map"]


def owner_by_name(outputs: Sequence[str], classes: Sequence[str], model: str, data: str) -> np.ndarray | None:
    """None where output m is class m; else the owner. Classes the model does not know are refused, with the difference."""
    if tuple(outputs) == tuple(classes) or not outputs:
        return None
    place = {name: i for i, name in enumerate(classes)}
    strangers = [name for name in classes if name not in set(outputs)]
    if strangers:
        shown = ", ".join(strangers[:8]) + (f" … ({len(strangers)} in all)" if len(strangers) > 8 else "")
        raise DataError(
            f"{len(strangers)} of the {len(classes)} classes of {data} are unknown to {model} ({len(outputs)} outputs): {shown}.",
            hint="fine-tune a head for them (vitrail finetune), or say which output stands for which class (--class-map)",
        )
    return np.array([place.get(name, -1) for name in outputs], dtype=np.int64)


def read_map(path: str | Path) -> dict[str, list[int | str]]:
    """A JSON file {class of the data: output, or list of outputs}, outputs by number or name."""
    try:
        table = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no class map ({error}).", hint='a JSON object {"chair": [423, 559], …}') from None
    if not isinstance(table, dict):
        raise DataError(f"{path} is no class map: its top level is no object.", hint='{"chair": [423, 559], …}')
    return {str(name): list(value) if isinstance(value, list) else [value] for name, value in table.items()}


def owner_by_map(table: Mapping[str, Sequence[int | str]], outputs: Sequence[str], count: int, classes: Sequence[str]) -> np.ndarray:
    """The owner a map describes; a class of the data that the map lacks is owned by no output."""
    owner = np.full(count, -1, dtype=np.int64)
    names = {name: i for i, name in enumerate(outputs)}
    for k, name in enumerate(classes):
        for output in table.get(name, ()):
            m = names.get(output) if isinstance(output, str) else output
            if m is None or not isinstance(m, int) or not 0 <= m < count:
                raise UsageError(f"the class map gives {name!r} the output {output!r}{nearest(str(output), names)}, and there are {count}.")
            if owner[m] >= 0:
                raise UsageError(f"the class map gives output {m} to {classes[owner[m]]!r} and to {name!r}.")
            owner[m] = k
    return owner
