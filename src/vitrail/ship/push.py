"""`push`: a model to the hub, in files that transformers or timm open as their own.

The folder is written by `weights.convert`, which proves that it reads back as the same model,
with a README from the card beside it; then it is uploaded in one commit. `dry_run` stops before
the network and says what would go where.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.errors import ResourceError, UsageError, nearest
from vitrail.ship.readme import write_readme
from vitrail.weights.convert import convert

__all__ = ["FORMATS", "Pushed", "push"]

FORMATS = {"transformers": "hf", "timm": "timm", "vitrail": "vitrail"}


@dataclass
class Pushed:
    repository: str
    format: str
    files: dict[str, int]  # name -> bytes
    difference: float  # of the logits after a round trip through the files
    url: str | None = None  # None: nothing was sent

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        listed = "\n".join(f"  {name}  {size:,} bytes" for name, size in self.files.items())
        where = f"pushed to {self.url}" if self.url else f"would be pushed to {self.repository} (dry run, nothing was sent)"
        return f"{where} as {self.format}; logits read back within {self.difference:.1e}\n{listed}"


def push(
    model: str | os.PathLike[str] | nn.Module,
    repository: str,
    *,
    format: str = "transformers",
    private: bool = True,
    message: str = "Upload with vitrail",
    folder: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> Pushed:
    """Upload `model` as OWNER/NAME. format: "transformers", "timm" or "vitrail". New repositories are private unless told.

    folder: keep the files there too. The token is the hub's own (HF_TOKEN, or `hf auth login`).
    """
    if format not in FORMATS:
        raise UsageError(f"push has no format {format!r}{nearest(format, FORMATS)}.")
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UsageError(f"{repository!r} is no repository.", hint="OWNER/NAME")
    if not isinstance(model, nn.Module):
        from vitrail.weights.load import load_model

        model = load_model(model)
    with tempfile.TemporaryDirectory(prefix="vitrail-push-") as scratch:
        target = Path(folder) if folder is not None else Path(scratch)
        target.mkdir(parents=True, exist_ok=True)
        written = convert(model, f"{target}/", to=FORMATS[format], overwrite=True)
        write_readme(model, target, library=format)
        files = {file.name: file.stat().st_size for file in sorted(target.iterdir()) if file.is_file()}
        result = Pushed(repository, format, files, written.difference)
        if not dry_run:
            result.url = upload(target, repository, private=private, message=message)
    return result


def upload(folder: Path, repository: str, *, private: bool, message: str) -> str:
    """One commit with every file of the folder."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(library_name="vitrail")
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message=message)
    except (HfHubHTTPError, OSError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise ResourceError(f"{repository}: the hub did not take it ({text}).", hint="HF_TOKEN with write access, or --dry-run") from error
    return f"{api.endpoint}/{repository}"
