"""What `import vitrail` offers: verbs and a few nouns, each loaded on first use."""

import importlib
import inspect
import subprocess
import sys

import pytest

import vitrail


@pytest.mark.parametrize("name", [name for name in vitrail.__all__ if name != "__version__"])
def test_a_public_name_is_there_typed_and_documented(name):
    thing = getattr(vitrail, name)
    assert callable(thing) and inspect.getdoc(thing)
    for parameter in inspect.signature(thing).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, f"{name}({parameter.name}) has no type"


@pytest.mark.parametrize("name", ["train", "evaluate", "inspect"])
def test_a_room_named_like_its_verb_can_be_called_whatever_was_imported_before(name):
    verb = getattr(importlib.import_module(vitrail._PUBLIC[name]), name)
    assert inspect.unwrap(getattr(vitrail, name)) is verb
    code = (
        f"import vitrail, vitrail.train.report, vitrail.evaluate.classify, vitrail.inspect.maps\n"
        f"try: vitrail.{name}()\n"
        f'except TypeError as error: assert "{name}() missing" in str(error), error'
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        vitrail.trian  # noqa: B018
