"""What an image file says about itself, read without decoding a pixel.

`read_header(data)` names the format from its first bytes (never from a file name) and
reads the size, so that a bomb is refused before anything is allocated. Formats outside
`FORMATS` are refused by name; bytes that are no image at all are `unrecognised`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from vitrail.errors import DecodeError

FORMATS = ("JPEG", "PNG", "WebP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
# what `vitrail` looks for when it lists a folder; the content decides in the end
EXTENSIONS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG",
    ".png": "PNG", ".apng": "PNG", ".webp": "WebP", ".avif": "AVIF", ".gif": "GIF",
    ".bmp": "BMP", ".dib": "BMP", ".tif": "TIFF", ".tiff": "TIFF",
    ".ppm": "PPM", ".pgm": "PPM", ".pbm": "PPM", ".pnm": "PPM",
}  # fmt: skip

# formats we know and refuse: interpreters, layered documents, vectors, codecs we do not ship
_REFUSED: tuple[tuple[bytes, int, str], ...] = (
    (b"%!PS", 0, "PostScript"),
    (b"\xc5\xd0\xd3\xc6", 0, "EPS"),
    (b"%PDF", 0, "PDF"),
    (b"8BPS", 0, "PSD"),
    (b"gimp xcf", 0, "XCF"),
    (b"\x11\xaf", 4, "FLI"),
    (b"\x12\xaf", 4, "FLC"),
    (b"\x00\x00\x01\x00", 0, "ICO"),
    (b"\x00\x00\x02\x00", 0, "CUR"),
    (b"icns", 0, "ICNS"),
    (b"\x00\x00\x00\x0cjP  ", 0, "JPEG 2000"),
    (b"\xff\x4f\xff\x51", 0, "JPEG 2000"),
    (b"\xff\x0a", 0, "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", 0, "JPEG XL"),
    (b"\x76\x2f\x31\x01", 0, "OpenEXR"),
    (b"#?RADIANCE", 0, "Radiance HDR"),
    (b"DDS ", 0, "DDS"),
    (b"SIMPLE  =", 0, "FITS"),
    (b"DICM", 128, "DICOM"),
    (b"\xd7\xcd\xc6\x9a", 0, "WMF"),
    (b"\x01\x00\x00\x00", 0, "EMF"),
    (b"\x59\xa6\x6a\x95", 0, "Sun raster"),
    (b"\x01\xda", 0, "SGI"),
    (b"P7\n", 0, "PAM"),
    (b"Pf\n", 0, "PFM (floating point)"),
    (b"PF\n", 0, "PFM (floating point)"),
)
_ISO_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"hevc": "HEIC", b"heim": "HEIC", b"mif1": "HEIF", b"msf1": "HEIF"}


class Header(NamedTuple):
    """Size as stored (before orientation) and what the decoder has to know beforehand."""

    format: str
    width: int
    height: int
    orientation: int = 1  # EXIF 1..8
    animated: bool = False
    channels: int = 0  # JPEG components; 0 where the decoder will tell
    adobe: bool = False  # a JPEG with Adobe's APP14: its CMYK is stored inverted
    scans: bool = False  # a JPEG whose pixels may be spread over several scans
    frame: int = 0  # where a JPEG's frame header begins, after its marker


def read_header(data: bytes, where: str = "") -> Header:
    """The header of one image file, or DecodeError: empty, unrecognised, format_refused, truncated, corrupt."""
    name = identify(data, where)
    try:
        return _READERS[name](data)
    except DecodeError as error:
        raise DecodeError(error.reason, error.detail, where=where) from None
    except (struct.error, IndexError):
        raise DecodeError("truncated", f"the {name} header ends early", where=where) from None
    except ValueError as error:
        raise DecodeError("corrupt", f"{name}: {error}", where=where) from None


def identify(data: bytes, where: str = "") -> str:
    """The format's name if it is one of `FORMATS`; otherwise DecodeError says what it is instead."""
    if not data:
        raise DecodeError("empty", "0 bytes", where=where)
    name = _known(data)
    if name:
        return name
    refused = _refused(data)
    if refused:
        raise DecodeError("format_refused", refused, where=where, hint=f"convert it to one of {', '.join(FORMATS)} or remove it")
    raise DecodeError("unrecognised", _guess(data), where=where)


def _known(data: bytes) -> str | None:
    if data[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "TIFF"
    if data[4:8] == b"ftyp" and {b"avif", b"avis"} & set(_brands(data)):
        return "AVIF"
    if data[:2] == b"BM" and data[14:18] in _BMP_HEADERS:
        return "BMP"
    if data[:1] == b"P" and data[1:2] in b"123456" and data[2:3] in b" \t\r\n#" and len(data) > 2:
        return "PPM"
    # a known magic cut short: what is left is a prefix of it
    for magic, name in (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"RIFF", "WebP"),
        (b"GIF89a", "GIF"),
    ):
        if len(data) < 12 and len(data) > 1 and (magic.startswith(data) or data[: len(magic)] == magic):
            return name
    return None


def _refused(data: bytes) -> str | None:
    for magic, offset, name in _REFUSED:
        if data[offset : offset + len(magic)] == magic:
            return name
    if data[4:8] == b"ftyp":
        return next((_ISO_BRANDS[b] for b in _brands(data) if b in _ISO_BRANDS), "a video or another ISO media file")
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg")) and b"<svg" in data[:4096].lower():
        return "SVG"
    return None


def _brands(data: bytes) -> Iterator[bytes]:
    """Major and compatible brands of an ISO base media file (AVIF, HEIF, MP4)."""
    end = min(int.from_bytes(data[:4], "big"), len(data), 256)
    yield data[8:12]
    for at in range(16, end - 3, 4):
        yield data[at : at + 4]


def _guess(data: bytes) -> str:
    """One helpful word about bytes that are no image."""
    start = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "this is an HTML page, perhaps a failed download"
    if start.startswith((b"{", b"[")):
        return "this is JSON text, perhaps an error message of a download"
    if data[:4] == b"PK\x03\x04":
        return "this is a zip archive"
    if data[:2] == b"\x1f\x8b":
        return "this is gzip-compressed"
    if data[:7] == b"version" or data.startswith(b"version https://git-lfs"):
        return "this is a git-lfs pointer: run 'git lfs pull'"
    if not data.strip(b"\0"):
        return "all bytes are zero"
    return f"begins with {data[:8].hex(' ')}"


# ---------------------------------------------------------------- one reader a format


def _jpeg(data: bytes) -> Header:
    """Walk the markers to the frame header; keep EXIF orientation and Adobe's mark on the way."""
    at, orientation, adobe = 2, 1, False
    while True:
        while data[at] == 0xFF and data[at + 1] in (0xFF, 0x00):
            at += 1
        if data[at] != 0xFF:
            raise ValueError(f"no marker at byte {at}")
        marker = data[at + 1]
        at += 2
        if marker in (0x01, 0xD8) or 0xD0 <= marker <= 0xD7:
            continue
        if marker in (0xD9, 0xDA):
            raise ValueError("no frame header before the first scan")
        (length,) = struct.unpack_from(">H", data, at)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _jpeg_frame(data, at, orientation, adobe)
        if marker == 0xE1 and data[at + 2 : at + 8] == b"Exif\0\0":
            orientation = exif_orientation(data[at + 8 : at + length])
        adobe |= marker == 0xEE and data[at + 2 : at + 7] == b"Adobe"
        at += max(length, 2)


def _jpeg_frame(data: bytes, at: int, orientation: int, adobe: bool) -> Header:
    precision, height, width, channels = struct.unpack_from(">xxBHHB", data, at)
    if precision != 8:
        raise DecodeError("format_refused", f"{precision}-bit JPEG")
    if channels not in (1, 3, 4):
        raise ValueError(f"{channels} components")
    scans = _several_scans(data, at, channels)
    return Header("JPEG", width, height, orientation, False, channels, adobe, scans, at)


def _several_scans(data: bytes, frame: int, channels: int) -> bool:
    """Whether there can be more scans than one: a progressive file, or a first scan without all components."""
    if data[frame - 1] not in (0xC0, 0xC1):
        return True
    at = frame
    for _ in range(64):  # tables lie between the frame header and the first scan
        at += int.from_bytes(data[at : at + 2], "big")
        if data[at : at + 2] == b"\xff\xda":
            return data[at + 4 : at + 5] != bytes([channels])
        if data[at : at + 1] != b"\xff":
            break
        at += 2
    return True


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start of body, length) of every PNG chunk; DecodeError(truncated) where the file ends early."""
    at = 8
    while True:
        if at + 12 > len(data):
            raise DecodeError("truncated", "the file ends before IEND")
        length, name = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            raise DecodeError("truncated", f"chunk {name!r} ends after the file")
        yield name, at + 8, length
        if name == b"IEND":
            return
        at += 12 + length


def _png(data: bytes) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    if data[12:16] != b"IHDR":
        raise ValueError("the first chunk is not IHDR")
    orientation, animated, at = 1, False, 33
    while at + 12 <= len(data):  # only up to the pixels; the decoder walks the rest
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + min(length, 1 << 16)])
        animated |= name == b"acTL"
        if name in (b"IDAT", b"IEND"):
            break
        at += 12 + length
    return Header("PNG", width, height, orientation, animated)


def _webp(data: bytes) -> Header:
    kind = data[12:16]
    if kind == b"VP8X":
        flags = data[20]
        width, height = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        if len(data) < 30:
            raise IndexError
        orientation = _webp_orientation(data) if flags & 0x08 else 1
        return Header("WebP", width, height, orientation, bool(flags & 0x02))
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header("WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("WebP", width & 0x3FFF, height & 0x3FFF)
    if len(data) < 16:
        raise IndexError
    raise ValueError(f"unknown chunk {kind!r}")


def riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, start of body, length) of the chunks of a RIFF file, as far as they go."""
    at = 12
    while at + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, at)
        yield name, at + 8, length
        at += 8 + length + (length & 1)


def _webp_orientation(data: bytes) -> int:
    for name, start, length in riff_chunks(data):
        if name == b"EXIF":
            body = data[start : start + min(length, 1 << 16)]
            return exif_orientation(body.removeprefix(b"Exif\0\0"))
    return 1


def _gif(data: bytes) -> Header:
    """The larger of the logical screen and the first frame: both get allocated."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    for _ in range(1 << 16):
        block = data[at]
        if block == 0x2C:
            x, y, w, h = struct.unpack_from("<HHHH", data, at + 1)
            return Header("GIF", max(width, x + w) if w else 0, max(height, y + h) if h else 0)
        if block != 0x21:
            raise ValueError("no image before the end" if block == 0x3B else f"unknown block {block:#x}")
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    raise ValueError("too many extension blocks")


_BMP_HEADERS = {struct.pack("<I", size) for size in (12, 16, 40, 52, 56, 64, 108, 124)}


def _bmp(data: bytes) -> Header:
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return Header("BMP", width, abs(height))


def _tiff(data: bytes) -> Header:
    order = "<" if data[:1] == b"I" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    tags = _ifd(data, order, big)
    if 256 not in tags or 257 not in tags:
        raise ValueError("no width or height")
    # Pillow turns a TIFF upright itself, so orientation stays 1 here
    return Header("TIFF", tags[256], tags[257], channels=tags.get(339, 1))


def _ifd(data: bytes, order: str, big: bool, limit: int = 65_536) -> dict[int, int]:
    """First image directory: tag -> its first value, for the integer types; at most `limit` entries are read."""
    if big:
        (start,) = struct.unpack_from(order + "Q", data, 8)
        (count,) = struct.unpack_from(order + "Q", data, start)
        start, step, value_at = start + 8, 20, 12
    else:
        (start,) = struct.unpack_from(order + "I", data, 4)
        (count,) = struct.unpack_from(order + "H", data, start)
        start, step, value_at = start + 2, 12, 8
    tags = {}
    for at in range(start, start + min(count, limit) * step, step):
        tag, kind = struct.unpack_from(order + "HH", data, at)
        code = {1: "B", 3: "H", 4: "I", 16: "Q"}.get(kind)
        if code and tag in (256, 257, 274, 339):
            (tags[tag],) = struct.unpack_from(order + code, data, at + value_at)
    return tags


def exif_orientation(tiff: bytes) -> int:
    """Orientation 1..8 from an EXIF block (a small TIFF); 1 when absent or damaged."""
    try:
        if tiff[:4] not in (b"II*\0", b"MM\0*"):
            return 1
        value = _ifd(tiff, "<" if tiff[:1] == b"I" else ">", False).get(274, 1)
    except struct.error:
        return 1
    return value if 1 <= value <= 8 else 1


_PPM_TOKEN = re.compile(rb"\s*(?:#[^\n]*\n\s*)*(\d{1,10})(?=[\s#])")


def _ppm(data: bytes) -> Header:
    head, at, values = data[:4096], 2, []
    for _ in range(2):
        found = _PPM_TOKEN.match(head, at)
        if not found:
            raise ValueError("width and height are not numbers")
        values.append(int(found[1]))
        at = found.end()
    return Header("PPM", values[0], values[1])


def _avif(data: bytes) -> Header:
    """The largest image spatial extent box ('ispe') of the file's properties."""
    sizes = [struct.unpack_from(">II", data, found.end() + 4) for found in re.finditer(b"ispe", data[: 1 << 20])]
    if not sizes:
        raise ValueError("no image size in the file")
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return Header("AVIF", width, height, animated=b"avis" in set(_brands(data)))


_READERS: dict[str, Callable[[bytes], Header]] = {
    "JPEG": _jpeg, "PNG": _png, "WebP": _webp, "AVIF": _avif,
    "GIF": _gif, "BMP": _bmp, "TIFF": _tiff, "PPM": _ppm,
}  # fmt: skip


def count_frames(data: bytes, header: Header) -> int:
    """Frames of an animation, counted from its structure alone."""
    if header.format == "GIF":
        return _gif_frames(data)
    if header.format == "WebP" and header.animated:
        return sum(name == b"ANMF" for name, _, _ in riff_chunks(data))
    if header.format == "PNG" and header.animated:
        at = data.find(b"acTL")
        return max(1, struct.unpack_from(">I", data, at + 4)[0]) if at + 8 <= len(data) else 1
    return 1


def _gif_frames(data: bytes) -> int:
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    frames = 0
    try:
        while data[at] != 0x3B:
            if data[at] == 0x2C:
                frames += 1
                flags = data[at + 9]
                at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
            elif data[at] == 0x21:
                at += 2
            else:
                break
            while data[at]:
                at += data[at] + 1
            at += 1
    except IndexError:
        pass
    return max(1, frames)
