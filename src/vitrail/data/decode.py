"""Bytes -> RGB pixels: the only file that calls a codec.

The order of checks is fixed: length in bytes, format by content (an allow-list), size
from the header, aspect, and only then pixels; then orientation, bit depth, alpha, RGB.
Whatever is wrong is one DecodeError with one of nine reasons; there is no partial image.

JPEG goes through simplejpeg where it is installed (bit-identical with Pillow, and twice
as fast with the resize of `transform.py`); everything else through the one Pillow plugin
that belongs to the format, opened directly, so that no other plugin ever sees the bytes
and no process-wide Pillow setting is relied on or changed.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from vitrail.data.header import FORMATS, Header, count_frames, png_chunks, read_header, riff_chunks
from vitrail.errors import DecodeError, ResourceError

__all__ = ["FORMATS", "decode", "pixels", "probe", "to_rgb"]

Crop = Callable[[int, int], tuple[int, int, int, int]]
MAX_PIXELS = 50_000_000
MAX_BYTES = 256 << 20
MAX_ASPECT = 200  # a 1x20000 strip would become gigabytes when its short side is resized to 256

_PLUGINS = {
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "PPM": ("PIL.PpmImagePlugin", "PpmImageFile"),
}
try:
    import simplejpeg
except ImportError:  # optional: the extra 'fast'
    simplejpeg = None


def probe(data: bytes, *, where: str = "") -> tuple[str, int, int, int]:
    """(format, width, height, frames) without decoding; the size is upright, after EXIF orientation."""
    header = read_header(data, where)
    width, height = header.width, header.height
    if header.orientation >= 5:
        width, height = height, width
    return header.format, width, height, count_frames(data, header)


def decode(
    data: bytes,
    *,
    max_pixels: float = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    background: tuple[int, int, int] = (255, 255, 255),
    min_size: int | tuple[int, int] | None = None,
    crop: Crop | None = None,
    where: str = "",
) -> np.ndarray:
    """One image file -> uint8 RGB (height, width, 3), upright, transparency laid over `background`.

    `min_size` (one number, or (height, width)) allows JPEG's DCT-domain scaling by 1/2, 1/4
    or 1/8 while the result stays at least that large: several times faster on large photos,
    but not the same pixels, so it is for training only.

    `crop` is given the upright (height, width) and answers with the (top, left, height, width)
    that is wanted; rows of a JPEG below it are not decoded. The pixels are those of the whole.
    """
    if len(data) > max_bytes:
        raise DecodeError("too_many_bytes", f"{len(data):,} bytes, the limit is {max_bytes:,}", where=where)
    header = read_header(data, where)
    _check_size(header, max_pixels, where)
    try:
        if header.format == "JPEG":
            image = _jpeg(data, header, _min_size(min_size, header), crop)
        else:
            image = _pillow(data, header, background)
            image = image if crop is None else _cropped(image, crop(*image.shape[:2]))
    except DecodeError as error:
        raise DecodeError(error.reason, error.detail, where=where, hint=error.hint) from None
    except (MemoryError, ResourceError):
        raise
    except Exception as error:  # codecs raise whatever they like; it all means: no image here
        raise _translate(error, data, header, where) from None
    return image


def pixels(data: bytes | np.ndarray, **options: Any) -> np.ndarray:
    """What a Record holds -> RGB: bytes are decoded, arrays are taken as they are (grey is replicated)."""
    if isinstance(data, np.ndarray):
        image = to_rgb(data, background=options.get("background", (255, 255, 255)), where=options.get("where", ""))
        crop = options.get("crop")
        return image if crop is None else _cropped(image, crop(*image.shape[:2]))
    return decode(data, **options)


def _cropped(image: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def to_rgb(image: np.ndarray, *, background: tuple[int, int, int] = (255, 255, 255), where: str = "") -> np.ndarray:
    """A uint8 array HW, HW1, HW2 (grey, alpha), HW3 or HW4 -> HW3."""
    if image.dtype != np.uint8:
        raise DecodeError("format_refused", f"array of {image.dtype}; give uint8 in 0..255", where=where)
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim != 3 or image.shape[2] not in (1, 2, 3, 4):
        raise DecodeError("bad_dimensions", f"array of shape {image.shape}; give (height, width[, 1..4])", where=where)
    channels = image.shape[2]
    if channels in (2, 4):
        image = _flatten(image, background)
    if image.shape[2] == 1:
        image = np.broadcast_to(image, (*image.shape[:2], 3))
    return np.ascontiguousarray(image)


# ---------------------------------------------------------------- checks before any pixel


def _check_size(header: Header, max_pixels: float, where: str) -> None:
    width, height = header.width, header.height
    if width <= 0 or height <= 0:
        raise DecodeError("bad_dimensions", f"{width}x{height}", where=where)
    if width * height > max_pixels:
        detail = f"{width}x{height} is {width * height / 1e6:.0f} million pixels, the limit is {max_pixels / 1e6:.0f}"
        raise DecodeError("too_many_pixels", detail, where=where)
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise DecodeError("bad_dimensions", f"{width}x{height} is thinner than 1:{MAX_ASPECT}", where=where)


def _min_size(min_size: int | tuple[int, int] | None, header: Header) -> tuple[int, int] | None:
    """The wanted lower bound as stored, that is, before orientation turns the image."""
    if min_size is None:
        return None
    height, width = (min_size, min_size) if isinstance(min_size, int) else min_size
    return (width, height) if header.orientation >= 5 else (height, width)


def _translate(error: Exception, data: bytes, header: Header, where: str) -> DecodeError:
    text = " ".join(str(error).split())[:200]
    low = text.lower()
    short = ("truncated", "premature", "unexpected end", "not enough", "broken data stream", "ended", "incomplete")
    reason = "truncated" if any(word in low for word in short) or isinstance(error, EOFError) else "corrupt"
    if header.format == "TIFF" and "unknown pixel mode" in low:
        reason, text = "format_refused", "TIFF with an unusual pixel layout"
    return DecodeError(reason, f"{header.format}: {text or type(error).__name__}", where=where)


# ---------------------------------------------------------------- JPEG


def _jpeg(data: bytes, header: Header, min_size: tuple[int, int] | None, crop: Crop | None) -> np.ndarray:
    if data.rfind(b"\xff\xd9") < 0:
        raise DecodeError("truncated", "JPEG: no end of image")
    if header.scans and data.count(b"\xff\xda") > 256:
        raise DecodeError("corrupt", "JPEG: more than 256 scans")
    scale = _dct_scale(header, min_size)
    box = None
    if crop is not None and scale == 1:
        turned = header.orientation >= 5
        box = crop(*((header.width, header.height) if turned else (header.height, header.width)))
    image = None
    if box is not None and header.orientation == 1:
        image = _top_rows(data, header, box[0] + box[2])
    if image is None:
        image = _upright(_jpeg_pixels(data, header, scale), header.orientation)
    if crop is not None and box is None:
        box = crop(*image.shape[:2])
    return image if box is None else _cropped(image, box)


def _jpeg_pixels(data: bytes, header: Header, scale: int) -> np.ndarray:
    """As stored, at 1 / scale."""
    if header.channels == 4:
        return _cmyk(data, header, scale)
    if simplejpeg is None:
        return _array(_open_jpeg(data, header, scale, "RGB").convert("RGB"))
    size = {"min_height": -(-header.height // scale), "min_width": -(-header.width // scale)}
    return simplejpeg.decode_jpeg(data, "RGB", **size)


_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd[0-9]")


def _top_rows(data: bytes, header: Header, rows: int) -> np.ndarray | None:
    """The first rows of a JPEG of one scan, by a copy that says it is only so high: the decoder stops there and
    then complains about the rest, after the pixels are in the buffer. None where that cannot be done, or where
    it complains about anything else. One row more than wanted, because chroma is interpolated across rows."""
    height = rows + 1
    if simplejpeg is None or header.channels == 4 or header.scans or height > header.height - 16:
        return None
    shorter = data[: header.frame + 3] + height.to_bytes(2, "big") + data[header.frame + 5 :]
    image = np.empty((height, header.width, 3), np.uint8)
    try:
        simplejpeg.decode_jpeg(shorter, "RGB", buffer=image.reshape(-1))
    except ValueError as error:
        return image if _REST.fullmatch(str(error)) else None
    return None


def _dct_scale(header: Header, min_size: tuple[int, int] | None) -> int:
    """The largest of 1, 2, 4, 8 that keeps the image at least `min_size`."""
    if min_size is None:
        return 1
    fits = (s for s in (8, 4, 2) if header.height // s >= min_size[0] and header.width // s >= min_size[1])
    return next(fits, 1)


def _open_jpeg(data: bytes, header: Header, scale: int, mode: str) -> Any:
    image = _open(data, "JPEG")
    if scale > 1:
        image.draft(mode, (header.width // scale, header.height // scale))
    image.load()
    return image


def _cmyk(data: bytes, header: Header, scale: int) -> np.ndarray:
    """CMYK or YCCK to RGB without a colour profile: R = (255 - C)(255 - K) / 255.

    Adobe stores ink inverted and says so with APP14; Pillow assumes it always, so
    a file without that mark is turned back.
    """
    image = _open_jpeg(data, header, scale, "CMYK")
    ink = _array(image if image.mode == "CMYK" else image.convert("CMYK"))
    paper = (255 - ink if header.adobe else ink).astype(np.uint16)
    return ((paper[..., :3] * paper[..., 3:] + 127) // 255).astype(np.uint8)


# ---------------------------------------------------------------- everything else, through Pillow


def _open(data: bytes, name: str) -> Any:
    module, plugin = _PLUGINS[name]
    try:
        opened = getattr(importlib.import_module(module), plugin)
    except ImportError:
        raise ResourceError(f"this Pillow cannot read {name}.", hint="pip install -U pillow") from None
    return opened(io.BytesIO(data))


def _pillow(data: bytes, header: Header, background: tuple[int, int, int]) -> np.ndarray:
    if header.format == "PNG":
        data = _lean_png(data)
    elif header.format == "WebP":
        _whole_riff(data)
    elif header.format == "TIFF" and header.channels == 3:
        raise DecodeError("format_refused", "floating-point TIFF: scale it to 8 or 16 bit integers first")
    image = _open(data, header.format)
    if image.size[0] * image.size[1] > header.width * header.height:
        raise DecodeError("corrupt", f"{header.format}: the decoder sees another size than the header")
    image.load()
    orientation = header.orientation
    if header.format == "AVIF":
        orientation = image.getexif().get(0x0112, 1)
    return _upright(_depth_alpha_rgb(image, header.format, background), orientation)


# a PNG's other chunks (text, profiles, private data) can hold 64 MB of zeros; pixels need only these
_PNG_NEEDED = frozenset((b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"))


def _lean_png(data: bytes) -> bytes:
    """The file without its ancillary chunks, after a check that it is whole."""
    chunks = list(png_chunks(data))
    if not any(name == b"IDAT" for name, _, _ in chunks):
        raise DecodeError("truncated", "PNG: no pixels")
    _check_crc(data, chunks)
    if all(name in _PNG_NEEDED for name, _, _ in chunks):
        return data
    return data[:8] + b"".join(data[at - 8 : at + n + 4] for name, at, n in chunks if name in _PNG_NEEDED)


def _check_crc(data: bytes, chunks: list[tuple[bytes, int, int]]) -> None:
    view = memoryview(data)
    for name, at, length in chunks:
        if name in _PNG_NEEDED and zlib.crc32(view[at - 4 : at + length]) != struct.unpack_from(">I", data, at + length)[0]:
            raise DecodeError("corrupt", f"PNG: checksum of {name.decode('ascii', 'replace')}")


def _whole_riff(data: bytes) -> None:
    (size,) = struct.unpack_from("<I", data, 4)
    if size + 8 > len(data) + (size & 1):
        raise DecodeError("truncated", f"WebP: {len(data):,} of {size + 8:,} bytes")
    if any(at + length > len(data) for _, at, length in riff_chunks(data)):
        raise DecodeError("truncated", "WebP: a chunk ends after the file")


def _depth_alpha_rgb(image: Any, name: str, background: tuple[int, int, int]) -> np.ndarray:
    """Any Pillow mode we accept -> uint8 RGB; the others are refused by their name."""
    mode = image.mode
    if mode.startswith("I"):
        return _deep_grey(image, name, background)
    if mode == "F":
        raise DecodeError("format_refused", f"floating-point {name}: scale it to 8 or 16 bit integers first")
    if mode not in ("1", "L", "P", "RGB", "LA", "PA", "La", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"):
        raise DecodeError("format_refused", f"{name} in mode {mode}")
    transparent = "transparency" in image.info
    if mode in ("1", "L") and not transparent:
        return to_rgb(_array(image if mode == "L" else image.convert("L")))
    if mode in ("LA", "PA", "La", "RGBA", "RGBa") or transparent:
        return _flatten(_array(image if mode == "RGBA" else image.convert("RGBA")), background)
    if mode == "CMYK":
        paper = (255 - _array(image)).astype(np.uint16)
        return ((paper[..., :3] * paper[..., 3:] + 127) // 255).astype(np.uint8)
    return _array(image if mode == "RGB" else image.convert("RGB"))


def _deep_grey(image: Any, name: str, background: tuple[int, int, int]) -> np.ndarray:
    """16-bit grey, scaled by 255/65535 and rounded (Pillow's own conversion would clip at 255)."""
    if image.mode == "I" and name == "TIFF":
        raise DecodeError("format_refused", "32-bit integer TIFF: scale it to 8 or 16 bit first")
    deep = np.asarray(image).astype(np.uint32)
    grey = ((deep * 255 + 32767) // 65535).astype(np.uint8)
    if "transparency" in image.info:
        clear = deep == image.info["transparency"]
        return _flatten(np.dstack([grey, np.where(clear, 0, 255).astype(np.uint8)]), background)
    return to_rgb(grey)


def _flatten(image: np.ndarray, background: tuple[int, int, int]) -> np.ndarray:
    """Lay colour with alpha (last channel) over the background, rounded to nearest."""
    alpha = image[..., -1:].astype(np.uint16)
    behind = np.asarray(background, np.uint16)
    mixed: np.ndarray = image[..., :-1] * alpha + behind * (255 - alpha)
    return ((mixed + 127) // 255).astype(np.uint8)


def _array(image: Any) -> np.ndarray:
    """A Pillow image as a numpy array, copied in strips so that no third copy of it exists."""
    width, height = image.size
    bands = len(image.getbands())
    out = np.empty((height, width, bands) if bands > 1 else (height, width), np.uint8)
    rows = max(1, (4 << 20) // (width * bands))
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        out[top:bottom] = np.asarray(image.crop((0, top, width, bottom)) if rows < height else image)
    return out


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Undo EXIF orientation 2..8."""
    if orientation == 1:
        return image
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    flip_rows, flip_columns = {
        2: (False, True), 3: (True, True), 4: (True, False), 5: (False, False),
        6: (False, True), 7: (True, True), 8: (True, False),
    }[orientation]  # fmt: skip
    return np.ascontiguousarray(image[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1])
