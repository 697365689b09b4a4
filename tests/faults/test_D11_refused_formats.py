"""D11: interpreters, documents and codecs we do not ship are refused by name; no process is started for them."""

import sys

import pytest
from hostile import REFUSED
from photos import array, encode

from vitrail.data.decode import FORMATS, decode
from vitrail.errors import DecodeError

STARTED: list[str] = []
WATCHED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn")


def _audit(event, args):
    if WATCHING and event in WATCHED:
        STARTED.append(event)


WATCHING: list[bool] = []
sys.addaudithook(_audit)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_nothing_is_started(name):
    STARTED.clear()
    WATCHING.append(True)
    try:
        with pytest.raises(DecodeError) as error:
            decode(REFUSED[name], where="photo.jpg")
    finally:
        WATCHING.clear()
    assert error.value.reason == "format_refused" and not STARTED
    assert name.split()[0] in str(error.value) and "convert it" in str(error.value)


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "AVIF"])
def test_what_is_on_the_list_is_taken(format):
    assert decode(encode(array(0), format)).shape == (16, 16, 3)
