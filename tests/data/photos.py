"""Small image files and data sets of them, made on the spot."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def array(seed, height=16, width=16):
    """A smooth random picture: survives JPEG, unlike noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode(image, format="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format, **options)
    return file.getvalue()


def png(seed, height=16, width=16):
    return encode(array(seed, height, width))


def jpeg(seed, height=16, width=16, quality=90):
    return encode(array(seed, height, width), "JPEG", quality=quality)


def folder(root, classes=("cat", "dog"), count=3, splits=(), first=0):
    """root[/split]/class/number.png; every picture different."""
    seed = first
    for split in splits or ("",):
        for name in classes:
            place = Path(root) / split / name
            place.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                (place / f"{i}.png").write_bytes(png(seed))
                seed += 1
    return Path(root)
