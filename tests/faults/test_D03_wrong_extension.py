"""D03: a wrong extension does not matter: the content decides."""

import numpy as np
import pytest
from photos import array, encode

from vitrail.data.decode import decode, probe
from vitrail.data.source import open_source


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_content_decides(tmp_path, format):
    place = tmp_path / "cat"
    place.mkdir()
    data = encode(array(0), format)
    (place / "wrong.jpg").write_bytes(data)
    record = open_source(str(tmp_path)).read(0)
    assert probe(record.data)[0] == format
    assert (decode(record.data) == decode(data)).all()


def test_the_right_extension_is_no_different(tmp_path):
    place = tmp_path / "cat"
    place.mkdir()
    (place / "right.png").write_bytes(encode(array(0)))
    assert np.array_equal(decode(open_source(str(tmp_path)).read(0).data), array(0))
