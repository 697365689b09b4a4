"""The small JSON files beside weights (config.json and the like): read as data, never as instructions.

What a sidecar says is used value by value, from known keys. One that names code or a path
that leaves its folder is refused as a whole, whatever else it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError

__all__ = ["Sidecar", "read_sidecar"]

FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
_MAX_BYTES = 32 << 20  # 21,843 class names take about one megabyte
_CODE_KEYS = {
    "auto_map",
    "custom_pipelines",
    "_target_",
    "_partial_",
    "trust_remote_code",
    "__reduce__",
    "py/object",
    "py/reduce",
}
_NAME_KEYS = {
    "model_type",
    "architectures",
    "architecture",
    "hidden_act",
    "hidden_activation",
    "image_processor_type",
    "_class_name",
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_+\-]{1,100}")  # no dots, no slashes: nothing that could be imported or opened


@dataclass(frozen=True)
class Sidecar:
    """The JSON objects found beside a weight file, by file name; `config` is config.json (or empty)."""

    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.files.get("config.json", {})

    @property
    def processor(self) -> Mapping[str, Any]:
        """transformers' preprocessing (preprocessor_config.json), or empty."""
        return self.files.get("preprocessor_config.json", {})


def read_sidecar(weights: Path) -> Sidecar:
    """The sidecar files in the folder of a weight file, checked."""
    files: dict[str, Mapping[str, Any]] = {}
    for name in FILES:
        path = weights.parent / name
        if path.is_file():
            files[name] = read_json(path)
    complaints = [f"{name}: {text}" for name, content in files.items() for text in _complaints(content)]
    if complaints:
        raise CheckpointError(
            f"{weights.parent}: a file beside the weights names code or a path, so nothing was loaded or run: " + "; ".join(complaints),
            hint="remove these entries if you trust the weights; Vitrail builds models from numbers and known names only",
        )
    return Sidecar(files)


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object of bounded size, or an error that names the file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes are too many for a description of a model.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}).", hint="get the file again from its origin") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).", hint="check the path") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: a JSON {type(content).__name__}, not an object.", hint="get the file again from its origin")
    return content


def _complaints(content: Any) -> Iterator[str]:
    for key, value in _walk(content):
        leaf = key.rsplit(".", 1)[-1]
        if leaf in _CODE_KEYS and value:
            yield f"{key} = {value!r} names code"
        elif leaf in _NAME_KEYS and isinstance(value, str) and not _PLAIN_NAME.fullmatch(value):
            yield f"{key} = {value[:80]!r} is no plain name"
        elif isinstance(value, str) and leaf != "_name_or_path" and _leaves_folder(value):
            yield f"{key} = {value[:80]!r} leaves the folder"


def _leaves_folder(text: str) -> bool:
    parts = re.split(r"[/\\]", text)
    return len(text) < 4096 and len(parts) > 1 and (".." in parts or text.startswith(("file:", "~/")))


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in a JSON object; members of a list carry the list's key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}" if path else str(key)
            if key in _CODE_KEYS:
                yield here, inner
            else:
                yield from _walk(inner, here)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, path)
    else:
        yield path, value
