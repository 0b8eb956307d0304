"""Films: what they promise about changes, their moments and chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import binary_dilation

from hilrp.scenes.films import CHANGES, LASTS, Films
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def films():
    return Films(seed=11, count=80)[:]


def grown(mask):
    return binary_dilation(mask, iterations=3)


def changing(films):
    return [(film, actor) for film in films for actor in film.actors if actor.change is not None]


def test_a_film_does_not_depend_on_what_came_before():
    again = Films(seed=3)
    assert np.array_equal(Films(seed=3)[7].frames, again[7].frames)
    assert np.array_equal(Films(seed=3, count=9)[-2].frames, again[7].frames)
    assert not np.array_equal(Films(seed=4)[7].frames, again[7].frames)


def test_actors(films):
    assert {int(film.labels.sum()) for film in films} == {0, 1, 2}
    assert {len(film.actors) for film in films} >= {2, 3}
    assert sum(film.labels for film in films).min() > 5  # each change happens
    for film in films:
        assert film.frames.shape == (8, 48, 48, 3)
        assert film.frames.dtype == np.uint8
        changes = [actor.change for actor in film.actors if actor.change is not None]
        assert len(set(changes)) == len(changes)
        assert np.flatnonzero(film.labels).tolist() == sorted(changes)
        for actor in film.actors:
            assert actor.mask.any((1, 2)).all()  # it is there in every frame
            assert actor.moment.sum() == (0 if actor.change is None else LASTS)
            assert not actor.moment[0]
            assert not actor.moment[-1]


def test_without_its_change_a_film_differs_there_and_nowhere_else(films):
    for film, actor in changing(films):
        changed = (film.without(actor.change) != film.frames).any(-1)
        assert np.array_equal(changed.any((1, 2)), actor.moment)
        other = film.without(actor.change)
        for t in np.flatnonzero(actor.moment):
            # The points of stars and triangles fade out over three pixels. Behind the smooth edges of those in front a
            # change shines through.
            near = [grown(actor.mask[t]), *(grown(a.mask[t]) & grown(~a.mask[t]) for a in film.actors)]
            assert not (changed[t] & ~np.any(near, axis=0)).any()
            own = other[t].astype(int) - film.frames[t]
            assert np.abs(own)[actor.mask[t]].mean() > 1.5


def test_a_change_is_what_it_is_called(films):
    """Against the film without it: larger, smaller, gone, whiter."""
    for film, actor in changing(films):
        plain, name = film.without(actor.change), CHANGES[actor.change]
        t = int(np.flatnonzero(actor.moment)[0])
        before = actor.mask[t - 1].sum()
        if name == "swells":
            assert actor.mask[t].sum() > 1.4 * before
        if name == "flashes":
            own = actor.mask[t]
            assert film.frames[t][own].min(-1).mean() > plain[t][own].min(-1).mean() + 40
        if name in ("shrinks", "vanishes"):
            assert actor.mask[t].sum() < 1.4 * before  # what would be there otherwise


def test_no_single_frame_tells_a_change():
    """Objects that don't change are as large as those that are swollen, as small as those that are shrunk, as white."""
    films = Films(seed=5, count=150)
    drawn = [(a, f.frames) for f in films for a in f.actors]
    plain = [a.mask[0].sum() for a, _ in drawn if a.change is None]
    swollen = [a.mask[a.moment].sum((1, 2)).mean() for a, _ in drawn if a.change == 0]
    assert np.mean(np.array(plain) > np.median(swollen)) > 0.15
    # What is shrunk is as small as a third of what it was.
    shrunk = [0.35 * a.mask[0].sum() for a, _ in drawn if a.change == 1]
    assert np.mean(np.array(plain) < np.median(shrunk)) > 0.15
    white = [frames[t][a.mask[t]].min() for a, frames in drawn if a.change == 3 for t in np.flatnonzero(a.moment)[:1]]
    pale = [frames[0][a.mask[0]].min() for a, frames in drawn if a.name.startswith("white")]
    assert len(pale) > 20
    assert np.mean(pale) == pytest.approx(np.mean(white), rel=0.1)


def test_other_sizes():
    film = Films(seed=1, frames=12, size=64, actors=(4, 4), changes=(4, 4))[0]
    assert film.frames.shape == (12, 64, 64, 3)
    assert film.labels.tolist() == [1, 1, 1, 1]
    short = Films(seed=1, frames=4, size=32, actors=(1, 1), changes=(1, 4))[0]
    assert short.frames.shape == (4, 32, 32, 3)
    assert short.actors[0].moment.tolist() == [False, True, True, False]


def test_what_is_not_there():
    film = next(film for film in Films(seed=0) if film.labels.sum() == 1)
    missing = int(np.flatnonzero(film.labels == 0)[0])
    with pytest.raises(InputError, match=f"nothing in this film {CHANGES[missing]}"):
        film.without(missing)
    with pytest.raises(InputError, match="is of no known kind"):
        film.actor(9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"actors": (0, 2)}, "actors="),
        ({"changes": (0, 9)}, "changes="),
        ({"frames": 3}, "frames=3"),
        ({"size": 8}, "size=8"),
    ],
)
def test_what_can_not_be_drawn(options, words):
    with pytest.raises(InputError, match=words):
        Films(**options)
    with pytest.raises(IndexError):
        Films(count=3)[3]
