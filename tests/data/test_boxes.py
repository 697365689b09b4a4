"""The vectorised samplers against the ones that draw for a single image."""

import numpy as np
import pytest

from vitrail.data.boxes import inception_boxes, random_resized_boxes
from vitrail.data.crop import inception_box, random_resized_box
from vitrail.kernels import draws

WORDS = draws.key(3, "crop")
POSITIONS = np.arange(7 * 2**31, 7 * 2**31 + 3000)
SIZES = np.random.default_rng(0).integers(1, 600, (3000, 2))


@pytest.mark.parametrize(
    ("one", "many", "area", "ratio"),
    [
        (inception_box, inception_boxes, (0.05, 1.0), (0.75, 1.33)),
        (inception_box, inception_boxes, (0.9, 1.0), (0.5, 2.0)),
        (random_resized_box, random_resized_boxes, (0.08, 1.0), (3 / 4, 4 / 3)),
        (random_resized_box, random_resized_boxes, (0.9, 1.0), (0.9, 1.1)),
    ],
)
def test_a_batch_of_boxes_is_what_each_sample_gets_alone(one, many, area, ratio):
    height, width = SIZES.T
    together = many(height, width, draws.Streams(WORDS, POSITIONS), area, ratio)
    alone = [one(int(h), int(w), draws.Stream(WORDS, int(p)), area, ratio) for h, w, p in zip(height, width, POSITIONS)]
    assert np.array_equal(together, np.array(alone))


def test_many_streams_draw_what_each_draws_alone():
    streams = draws.Streams(WORDS, POSITIONS[:5])
    every, some = np.arange(5), np.array([1, 3])
    drawn = [streams.uniform(every, -1, 2), streams.integer(some, 10), streams.integer(every, np.array([3, 4, 5, 6, 7]))]
    for row, position in enumerate(POSITIONS[:5]):
        stream = draws.Stream(WORDS, int(position))
        assert stream.uniform(-1, 2) == drawn[0][row]
        if row in some:
            assert stream.integer(10) == drawn[1][list(some).index(row)]
        assert stream.integer([3, 4, 5, 6, 7][row]) == drawn[2][row]
