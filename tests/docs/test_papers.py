"""docs/papers.md tells the truth about lines. Run as a script it writes the line numbers anew."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
ROW = re.compile(r"^\| (?P<item>[^|]+) \| (?P<says>[^|]+) \| `(?P<path>[\w/.-]+):(?P<line>\d+)` \| `(?P<marker>[^`]+)` \|$", re.M)
MUST_BE_THERE = {f"eq. {n}" for n in range(1, 9)} | {"3.1", "3.2", "B.1", "D.3", "D.4", "D.6", "D.7", "D.8"}


def lines_with(path: str, marker: str) -> list[int]:
    """Where a marker stands; an equation's number is not the beginning of a longer one."""
    pattern = re.compile(re.escape(marker) + (r"(?!\d)" if marker[-1].isdigit() else ""))
    text = (ROOT / "src" / "vitrail" / path).read_text().splitlines()
    return [number for number, line in enumerate(text, 1) if pattern.search(line)]


def rows():
    return [pytest.param(row, id=f"{row['item']} {row['marker']}") for row in ROW.finditer(PAGE.read_text())]


@pytest.mark.parametrize("row", rows())
def test_a_row_of_the_page_names_its_line(row):
    found = lines_with(row["path"], row["marker"])
    assert len(found) == 1, f"{row['marker']!r} is on the lines {found} of {row['path']}"
    assert found == [int(row["line"])], "python tests/docs/test_papers.py writes the line numbers anew"


def test_every_equation_and_appendix_that_is_code_has_a_row():
    items = {part.strip() for row in ROW.finditer(PAGE.read_text()) for part in row["item"].split(",")}
    assert items >= MUST_BE_THERE


def test_every_row_of_the_tables_of_lines_is_read():
    """A row that the pattern misses would never be checked."""
    text = PAGE.read_text().split("## Initial values")[0]
    assert len(re.findall(r"^\| (?!paper |---)", text, re.M)) == len(list(ROW.finditer(text)))


def rewrite() -> None:
    def numbered(row: re.Match) -> str:
        found = lines_with(row["path"], row["marker"])
        assert len(found) == 1, f"{row['marker']!r} is on the lines {found} of {row['path']}"
        return row[0].replace(f"{row['path']}:{row['line']}`", f"{row['path']}:{found[0]}`")

    PAGE.write_text(ROW.sub(numbered, PAGE.read_text()))


if __name__ == "__main__":
    rewrite()
