"""Hostile image files, built from bytes; nothing of the kind lies in the repository."""

import io
import struct
import zlib

import numpy as np
from photos import array, encode
from PIL import Image


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_bytes(width, height, bits, colour, rows, *between):
    """A PNG from its parts; `rows` are the filtered bytes before compression, or a compressed stream."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    stream = rows if isinstance(rows, Compressed) else zlib.compress(rows, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(between) + chunk(b"IDAT", bytes(stream)) + chunk(b"IEND", b"")


class Compressed(bytes):
    """Bytes that are compressed already."""


def zeros(count):
    """`count` zero bytes, compressed: one block's stream over and over, and the checksum by hand."""
    size = 1 << 20
    whole, rest = divmod(count, size)
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = machine.compress(bytes(size)) + machine.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, zlib.DEFLATED, -15)
    checksum = struct.pack(">HH", count % 65521, 1)  # Adler-32 of zeros
    return Compressed(b"\x78\xda" + block * whole + last.compress(bytes(rest)) + last.flush() + checksum)


def bomb(side, bits=1):
    """A side x side grey PNG of one bit a pixel: 60,000 squared is 560 KB."""
    return png_bytes(side, side, bits, 0, zeros(side * ((side * bits + 7) // 8 + 1)))


def liar(format):
    """A few bytes whose header claims an enormous picture."""
    big = 60_000
    if format == "PNG":
        return png_bytes(big, big, 8, 2, b"\0" * 100)
    if format == "GIF":
        body = b"GIF89a" + struct.pack("<HHBBB", big, big, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
        return body + b"," + struct.pack("<HHHHB", 0, 0, big, big, 0) + b"\x02\x02\x44\x01\0;"
    if format == "BMP":
        info = struct.pack("<IiiHHIIiiII", 40, big, big, 1, 24, 0, 0, 0, 0, 0, 0)
        return b"BM" + struct.pack("<IHHI", 4096, 0, 0, 54) + info + bytes(4042)
    if format == "TIFF":
        return tiff({256: big, 257: big, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: big, 279: 64})
    if format == "WebP":
        body = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (16383).to_bytes(3, "little") * 2
        return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    if format == "JPEG":
        data = bytearray(encode(array(0), "JPEG"))
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", big, big)
        return bytes(data)
    if format == "PPM":
        return b"P6\n60000 60000\n255\n" + bytes(100)
    raise AssertionError(format)


def tiff(tags, order="<", extra=b""):
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "IH", 8, len(tags)) + entries + struct.pack(order + "I", 0) + extra


def cmyk(inverted, image=None):
    """(file, reference RGB): a CMYK JPEG whose ink we know; Adobe's mark says it is stored inverted."""
    image = array(3, 48, 48) if image is None else image
    rgb = image.astype(int)
    black = 255 - rgb.max(-1)
    ink = np.dstack([255 - rgb - black[..., None], black]).clip(0, 255).astype(np.uint8)
    paper = 255 - ink.astype(int)
    reference = paper[..., :3] * paper[..., 3:] / 255
    buffer = io.BytesIO()
    Image.fromarray(ink, "CMYK").save(buffer, "JPEG", quality=95)  # Pillow writes Adobe's mark and inverts
    data = buffer.getvalue()
    if not inverted:  # a file without the mark holds plain ink: invert before Pillow inverts, and cut the mark out
        buffer = io.BytesIO()
        Image.fromarray(255 - ink, "CMYK").save(buffer, "JPEG", quality=95)
        data = without_adobe(buffer.getvalue())
    return data, reference


def without_adobe(data):
    at = data.index(b"\xff\xee")
    (length,) = struct.unpack_from(">H", data, at + 2)
    return data[:at] + data[at + 2 + length :]


def oriented(image, orientation, format="PNG"):
    """A file that shows `image` once its EXIF orientation is undone."""
    turned = {
        1: image, 2: image[:, ::-1], 3: image[::-1, ::-1], 4: image[::-1], 5: image.swapaxes(0, 1),
        6: image.swapaxes(0, 1)[::-1], 7: image.swapaxes(0, 1)[::-1, ::-1], 8: image.swapaxes(0, 1)[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WebP" else {"quality": 95} if format == "JPEG" else {}
    return encode(np.ascontiguousarray(turned), format, exif=exif, **options)


def animation(format, frames=1000, size=16):
    pictures = [Image.new("RGB", (size, size), (i * 37 % 256, 90, i * 91 % 256)) for i in range(frames)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, format, save_all=True, append_images=pictures[1:], duration=20, loop=0)
    return buffer.getvalue()


REFUSED = {
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\n",
    "EPS with preview": b"\xc5\xd0\xd3\xc6" + bytes(60),
    "PSD": b"8BPS\0\x01" + bytes(6) + struct.pack(">HIIHH", 3, 10, 10, 8, 3) + bytes(40),
    "FLI": struct.pack("<IHHHH", 128, 0xAF11, 1, 10, 10) + bytes(120),
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "PDF": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
    "ICO": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" + bytes(60),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(60),
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(60),
    "JPEG XL": b"\xff\x0a" + bytes(60),
    "DICOM": bytes(128) + b"DICM" + bytes(60),
}
