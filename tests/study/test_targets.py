"""The paper's numbers as data: whole, consistent among themselves, found by name."""

from statistics import fmean

import pytest

from vitrail.errors import UsageError
from vitrail.study.mini.designs import DESIGNS
from vitrail.study.targets import FOLDER, list_targets, load_target

WANTED = [f"table-{n}" for n in (2, 5, 6, 7, 8, 9)] + [f"figure-{n}" for n in (3, 4, 5, 7, 8, 9, 10, 11, 12, 13)]


def test_every_table_and_figure_is_there():
    assert set(WANTED) <= set(list_targets())
    assert set(list_targets()) == {path.stem for path in FOLDER.glob("*.toml")}


@pytest.mark.parametrize("name", list_targets())
def test_each_says_its_protocol_its_data_and_what_it_claims(name):
    target = load_target(name)
    assert target.name == name and target.title and target.protocol and target.public and target.claims
    assert all(set(row.values) <= set(target.columns) and set(row.std) <= set(row.values) for row in target.rows if not target.rows_from)
    assert all(row.why for row in target.rows if row.above)
    assert not target.mini or target.mini in DESIGNS


@pytest.mark.parametrize("written", ["Table 6", "table6", "TABLE-6", "tab 6"])
def test_a_table_is_found_as_people_write_it(written):
    assert load_target(written).name == "table-6"


def test_a_figure_without_numbers_of_its_own_has_its_tables():
    assert load_target("fig. 5").rows == load_target("table-6").rows


def test_an_unknown_name_gets_its_nearest():
    with pytest.raises(UsageError, match="did you mean 'table-6'"):
        load_target("tabel-6")


def test_table_7s_averages_are_the_means_of_its_columns():
    for row in load_target("table-7").rows:
        tasks = [value for column, value in row.values.items() if column != "Average"]
        assert len(tasks) == 5 and row.values["Average"] == pytest.approx(fmean(tasks), abs=0.0051)


def test_table_9s_means_are_over_its_nineteen_tasks():
    for row in load_target("table-9").rows:
        tasks = [value for column, value in row.values.items() if column != "Mean"]
        assert len(tasks) == 19 and row.values["Mean"] == pytest.approx(fmean(tasks), abs=0.1)


def test_tables_5_6_and_7_agree_where_they_print_the_same_run():
    six = {(row.model, row.epochs): row.values for row in load_target("table-6").rows}
    for row in load_target("table-5").rows:
        if row.pretrain == "JFT-300M" and row.model != "ViT-H/14":  # H/14 differs in the paper itself
            assert row.values == six[row.model, row.epochs], row.name
    for row in load_target("table-7").rows:
        if row.optimizer == "Adam":
            assert row.values.items() - {("Average", row.values["Average"])} <= six[row.model, 7].items()


def test_the_paper_s_contradiction_about_h14_is_kept_as_printed():
    five = next(row for row in load_target("table-5").rows if (row.model, row.pretrain) == ("ViT-H/14", "JFT-300M"))
    six = next(row for row in load_target("table-6").rows if row.model == "ViT-H/14")
    assert (five.values["ImageNet"], six.values["ImageNet"]) == (88.04, 88.08)


def test_a_misspelt_key_in_a_document_is_refused(tmp_path, monkeypatch):
    (tmp_path / "table-99.toml").write_text('name = "table-99"\ntitel = "x"\n')
    monkeypatch.setattr("vitrail.study.targets.FOLDER", tmp_path)
    load_target.cache_clear()
    with pytest.raises(UsageError, match=r"no key 'titel' \(did you mean 'title'"):
        load_target("table-99")
    load_target.cache_clear()
