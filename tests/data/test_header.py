import numpy as np
import pytest
from hostile import animation, oriented
from photos import array, encode

from vitrail.data.header import EXTENSIONS, FORMATS, count_frames, exif_orientation, identify, read_header
from vitrail.errors import DecodeError

FILES = {format: encode(array(0, 10, 14), format) for format in FORMATS if format != "AVIF"}


@pytest.mark.parametrize("format", FILES)
def test_format_and_size_come_from_the_first_bytes(format):
    header = read_header(FILES[format])
    assert (header.format, header.width, header.height) == (format, 14, 10)


@pytest.mark.parametrize("format", FILES)
def test_every_prefix_gives_a_header_or_a_reason(format):
    data, reasons = FILES[format], set()
    for cut in range(min(len(data), 400)):
        try:
            header = read_header(data[:cut])
        except DecodeError as error:
            reasons.add(error.reason)
        else:
            assert (header.width, header.height) == (14, 10)
    assert reasons <= {"empty", "truncated", "unrecognised", "corrupt"}


def test_avif_is_known_by_its_brand():
    data = b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + b"\0\0\0\x14ispe\0\0\0\0" + (14).to_bytes(4, "big") + (10).to_bytes(4, "big")
    header = read_header(data)
    assert (header.format, header.width, header.height) == ("AVIF", 14, 10)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WebP"])
def test_orientation_is_found(format, orientation):
    assert read_header(oriented(array(0, 10, 14), orientation, format)).orientation == orientation


@pytest.mark.parametrize("block", [b"", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"II*\0\xff\xff\xff\xff", b"nonsense" * 9])
def test_a_damaged_exif_block_means_upright(block):
    assert exif_orientation(block) == 1


@pytest.mark.parametrize(("format", "frames"), [("GIF", 12), ("WebP", 12), ("PNG", 12)])
def test_frames_are_counted(format, frames):
    data = animation(format, frames)
    assert count_frames(data, read_header(data)) == frames


@pytest.mark.parametrize(
    ("options", "several"), [({}, False), ({"progressive": True}, True), ({"subsampling": 0}, False), ({"optimize": True}, False)]
)
def test_whether_a_jpeg_has_several_scans(options, several):
    header = read_header(encode(array(0), "JPEG", **options))
    assert header.scans == several


def test_a_jpeg_of_separate_planes_counts_as_several_scans():
    data = bytearray(encode(array(0), "JPEG"))
    at = data.index(b"\xff\xda")
    data[at + 4] = 1
    assert read_header(bytes(data)).scans


def test_the_frame_header_is_where_the_size_stands():
    data = encode(array(0, 10, 14), "JPEG")
    frame = read_header(data).frame
    assert data[frame + 3 : frame + 7] == bytes([0, 10, 0, 14])


def test_extensions_lead_to_known_formats():
    assert set(EXTENSIONS.values()) <= set(FORMATS) and np.all([e.startswith(".") for e in EXTENSIONS])


def test_what_it_is_instead_is_said():
    with pytest.raises(DecodeError, match="HTML"):
        identify(b"<html><body>not here</body></html>")
    with pytest.raises(DecodeError, match="PDF"):
        identify(b"%PDF-1.4")
