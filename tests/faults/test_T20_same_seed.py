"""T20: two runs with one seed write the same lines; another seed does not."""


def test_equal_lines_but_for_time(tiny, tmp_path):
    assert tiny.run(tmp_path / "run").code == 0
    assert tiny.lines(tmp_path / "run") == tiny.lines(tiny.golden())


def test_another_seed_gives_other_lines(tiny, tmp_path):
    assert tiny.run(tmp_path / "run", "train.seed=1").code == 0
    assert tiny.lines(tmp_path / "run") != tiny.lines(tiny.golden())
