"""The line a person watches."""

import pytest

from vitrail.runtime.progress import Progress, duration, quantity


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (273_600, "3 d 4 h")],
)
def test_durations(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(("value", "said"), [(12.3, "12.3 B"), (4.56e12, "4.56 TB"), (999, "999 B"), (1000, "1 kB"), (2e17, "200 PB")])
def test_quantities(value, said):
    assert quantity(value, "B") == said


def test_away_from_a_terminal_a_line_is_printed_now_and_then(capsys):
    with Progress(every_s=60) as line:
        line.show("step 1")
        line.show("step 2")
        line.say("held out: 81 %")
    assert capsys.readouterr().err.splitlines() == ["step 1", "held out: 81 %"]


def test_on_a_terminal_the_line_is_redrawn_and_what_stays_begins_a_new_one(capsys):
    with Progress() as line:
        line.terminal = True
        line.show("step 1 of 10")
        line.show("step 2")
        line.say("saved")
    assert capsys.readouterr().err == "\rstep 1 of 10\rstep 2      \nsaved\n"


def test_quiet_is_quiet(capsys):
    with Progress(quiet=True) as line:
        line.show("a")
        line.say("b")
    assert capsys.readouterr().err == ""
