"""RGB pixels -> bytes: the few places that write image files (packing, contact sheets) come here.

JPEG is written with full colour resolution (4:4:4), PNG without loss.
"""

from __future__ import annotations

import io

import numpy as np

try:
    import simplejpeg
except ImportError:  # optional: the extra 'fast'
    simplejpeg = None

__all__ = ["encode_jpeg", "encode_png"]


def encode_jpeg(image: np.ndarray, quality: int = 92) -> bytes:
    """uint8 (height, width, 3) -> JPEG."""
    if simplejpeg is not None:
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorspace="RGB", colorsubsampling="444"))
    return _pillow(image, "JPEG", quality=quality, subsampling=0)


def encode_png(image: np.ndarray) -> bytes:
    """uint8 grey (height, width) or colour (height, width, 1, 3 or 4) -> PNG."""
    return _pillow(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image, "PNG", compress_level=4)


def _pillow(image: np.ndarray, format: str, **options: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(out, format, **options)
    return out.getvalue()
