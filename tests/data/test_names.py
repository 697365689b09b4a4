"""Tables of names: flat buffers that behave as sequences."""

import hashlib
import pickle

import numpy as np
import pytest

from vitrail.data.names import Chosen, Names, Numbered, composed, shown


def digest(names):
    found = hashlib.sha256()
    names.update(found)
    return found.hexdigest()


def test_any_name_survives():
    odd = ["a", "", "caf\u00e9", "\U0001f600/x", "new\nline", "raw\udcff byte"]
    table = Names(odd)
    assert list(table) == odd and table[-1] == odd[-1] and table[1:3] == odd[1:3]
    assert list(pickle.loads(pickle.dumps(table))) == odd
    with pytest.raises(IndexError):
        table[6]


def test_numbered_names_cost_nothing_a_sample():
    table = Numbered(["a.parquet", "b.parquet"], [3, 2])
    assert list(table) == ["a.parquet:0", "a.parquet:1", "a.parquet:2", "b.parquet:0", "b.parquet:1"]
    large = Numbered([f"{k}.tar" for k in range(1000)], np.full(1000, 10**9))
    assert len(large) == 10**12 and large[10**12 - 1] == "999.tar:999999999"


def test_chosen_names():
    table = Chosen(Names("abcdef"), np.array([4, 1]))
    assert list(table) == ["e", "b"] and table[0:1] == ["e"] and len(table) == 2


def test_the_hash_tells_where_one_name_ends():
    assert digest(Names(["ab", "c"])) != digest(Names(["a", "bc"])) != digest(Names(["abc"]))
    assert digest(Numbered(["a"], [2])) != digest(Numbered(["a"], [3]))


def test_names_are_shown_on_one_line_and_composed():
    assert shown("a\nb\x1b[31m\udcff") == "a\\nb\\x1b[31m\\udcff"
    assert len(shown("x" * 999)) == 200
    assert composed("cafe\u0301") == "caf\u00e9"
