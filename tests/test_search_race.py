"""Races between learning rates at one batch size, within a search."""

from cbs_lightning.search.race import Race
from cbs_lightning.search.trials import Trial


def reached(steps):
    return Trial(16, 0, steps, steps, 0.2)


def missed(loss):
    return Trial(16, 0, None, 100, loss)


def finish(outcomes, start, failed=()):
    """The best place, and those run, one at a time."""
    trials = {}
    while proposed := Race(len(outcomes), start, trials, frozenset(failed)).propose():
        assert proposed[0] not in trials and proposed[0] not in failed
        trials[proposed[0]] = outcomes[proposed[0]]
    return Race(len(outcomes), start, trials, frozenset(failed)).best, list(trials)


def test_it_climbs_to_the_best_and_looks_at_both_sides():
    outcomes = [missed(2.0), reached(900), reached(500), reached(300), reached(400)]
    assert finish(outcomes, start=3) == (3, [3, 4, 2])
    assert finish(outcomes, start=2) == (3, [2, 3, 4])
    assert finish(outcomes, start=1) == (3, [1, 2, 3, 4])
    assert finish(outcomes, start=4) == (3, [4, 3, 2])


def test_losses_decide_where_none_reached():
    assert finish([missed(3.0), missed(1.0), missed(2.0), missed(None)], start=3)[0] == 1
    assert finish([missed(None)] * 3, start=2) == (0, [2, 1, 0])


def test_of_equal_ones_the_smaller_wins():
    assert finish([reached(300), reached(300), reached(300)], start=1)[0] == 0


def test_rates_that_failed_are_done_without():
    outcomes = [reached(500), reached(300), reached(200), reached(400)]
    assert finish(outcomes, start=1, failed=[2]) == (1, [1, 3, 0])
    assert finish(outcomes, start=0, failed=[0, 1, 2]) == (3, [3])
    assert Race(2, 0, {}, frozenset({0, 1})).propose() == []
    assert Race(2, 0, {}, frozenset({0, 1})).best is None


def test_both_neighbours_may_run_at_the_same_time():
    assert Race(5, 2, {2: reached(300)}).propose() == [3, 1]
    assert Race(5, 2, {2: reached(300), 3: reached(400)}).propose() == [1]
    assert Race(1, 0, {0: reached(300)}).best == 0
