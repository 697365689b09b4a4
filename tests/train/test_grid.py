"""What `vitrail sweep` reads from its command line."""

import pytest

from vitrail.config import Recipe
from vitrail.errors import UsageError
from vitrail.train.grid import points, read_grid


def test_a_comma_makes_an_axis_of_a_key_that_holds_one_value():
    fixed, grid = read_grid(["data.train=photos/", "optim.lr=0.01, 3e-2", "train.batch_size=256,512"])
    assert fixed == ["data.train=photos/"] and grid == {"optim.lr": ("0.01", "3e-2"), "train.batch_size": ("256", "512")}
    names = [point.name for point in points(Recipe(), grid)]
    assert names == [f"optim.lr={lr} train.batch_size={batch}" for lr in ("0.01", "0.03") for batch in (256, 512)]


def test_keys_that_hold_lists_take_lists_in_brackets():
    fixed, grid = read_grid(["model.image_size=[32,32],[64,48]", "optim.betas=0.9,0.95"])
    assert fixed == ["optim.betas=0.9,0.95"]
    first, second = points(Recipe(), grid)
    assert second.values == {"model.image_size": (64, 48)} and second.of(Recipe()).model.image_size == (64, 48)
    assert "/" not in first.folder and "[" not in first.folder


def test_text_in_quotes_is_one_value():
    assert read_grid(['data.train="a,b"']) == (["data.train=a,b"], {})


def test_the_same_value_written_twice_is_one_point():
    assert len(points(Recipe(), {"optim.lr": ("0.01", "1e-2", 0.01)})) == 1


def test_a_key_inside_an_open_table_is_an_axis_too():
    (point,) = points(Recipe(), {"model.options.drop_path": (0.1,)})
    assert point.of(Recipe()).model.options == {"drop_path": 0.1}


@pytest.mark.parametrize(("assignment", "said"), [("optim.lrr=1,2", "did you mean 'optim.lr'"), ("optim.lr=a,b", "must be a number")])
def test_what_is_no_key_or_no_value_is_refused(assignment, said):
    with pytest.raises(UsageError, match=said):
        points(Recipe(), read_grid([assignment])[1])
