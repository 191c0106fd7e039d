import numpy as np
import pytest

from cbs_lightning.results.trajectory import (
    Rule,
    RuleName,
    Trajectory,
    first_crossing,
    last_reading,
)

EPOCH, WINDOW, MIDDLE = RuleName


def trajectory(loss: list[float], size: list[int], correct: list[int] | None = None) -> Trajectory:
    return Trajectory(
        np.array(loss, np.float32),
        np.array(correct or [0] * len(loss), np.int32),
        np.array(size, np.int32),
    )


# n = 10, b = 4: batches of 4, 4, 2
SIZES = [4, 4, 2]


def test_epoch_rule_is_the_plain_mean_of_mini_batch_losses():
    # The second epoch's plain mean is 1; weighted by size it would be 0.7.
    found = trajectory([9, 9, 9, 0.5, 0.5, 2], SIZES * 2, [0, 0, 0, 4, 3, 1])
    rule = Rule(EPOCH, steps_per_epoch=3, window=10)
    reading = first_crossing(found, rule, 1.0)
    assert reading is not None
    assert (reading.steps, reading.samples, reading.loss, reading.accuracy) == (6, 20, 1.0, 0.8)
    assert first_crossing(found, rule, 0.99) is None


def test_window_rule_weights_by_size_and_takes_the_fewest_whole_batches():
    found = trajectory([9, 9, 9, 0.5, 0.5, 2], SIZES * 2)
    # Step 6 ends 2 + 4 + 4 = 10 samples: (2 * 2 + 4 * 0.5 + 4 * 0.5) / 10 = 0.8.
    assert first_crossing(found, Rule(WINDOW, 3, 10), 0.8).steps == 6
    # A window of 8: step 5 has just its latest two batches, of mean 0.5.
    assert first_crossing(found, Rule(WINDOW, 3, 8), 0.5).steps == 5
    # A window of 5 cannot be met by one batch of 4: step 4 still reaches back to step 3.
    assert first_crossing(found, Rule(WINDOW, 3, 5), 0.5).steps == 5
    assert first_crossing(found, Rule(WINDOW, 3, 4), 0.5).steps == 4


def test_window_rule_is_not_met_before_the_window_was_seen():
    found = trajectory([0.1] * 6, SIZES * 2)
    assert first_crossing(found, Rule(WINDOW, 3, 10), 1.0).steps == 3
    assert first_crossing(found, Rule(WINDOW, 3, 11), 1.0).steps == 4
    assert first_crossing(found, Rule(WINDOW, 3, 21), 1.0) is None


def test_middle_rule_counts_the_same_means_at_the_middle_of_their_windows():
    found = trajectory([9, 9, 9, 0.5, 0.5, 2], SIZES * 2, [0, 0, 0, 4, 3, 1])
    # Step 6 ends the first window of mean 0.8: steps 4, 5 and 6, so that it is at 5.
    reading = first_crossing(found, Rule(MIDDLE, 3, 10), 0.8)
    assert (reading.steps, reading.samples, reading.accuracy) == (5, 18, 0.8)
    # Of two batches the later one is it, so that no window of one batch is counted before it.
    assert first_crossing(found, Rule(MIDDLE, 3, 8), 0.5).steps == 5
    assert first_crossing(found, Rule(MIDDLE, 3, 4), 0.5).steps == 4
    assert first_crossing(found, Rule(MIDDLE, 3, 10), 0.8, since=5).steps == 5  # as read at 6
    assert first_crossing(found[:5], Rule(MIDDLE, 3, 10), 0.8) is None


@pytest.mark.parametrize("batch", [1, 4, 16, 100])
def test_middle_rule_has_no_lag_on_a_straight_line_where_rule_window_has_half_a_window(batch):
    window, steps = 200, 600
    found = trajectory(list(np.linspace(2, 0, steps)), [batch] * steps)
    exact = int(np.flatnonzero(found.loss <= 1.0)[0]) + 1
    late = first_crossing(found, Rule(WINDOW, steps, window), 1.0).steps - exact
    assert late == pytest.approx((window // batch - 1) / 2, abs=1)
    assert first_crossing(found, Rule(MIDDLE, steps, window), 1.0).steps == pytest.approx(
        exact, abs=1
    )


@pytest.mark.parametrize("name", RuleName)
def test_batch_larger_than_the_data_set(name):
    # b > n: an epoch is one step with all 10 samples.
    found = trajectory([3, 2, 1], [10, 10, 10])
    assert first_crossing(found, Rule(name, 1, 10), 2.0).steps == 2


@pytest.mark.parametrize("name", RuleName)
def test_threshold_met_at_the_very_first_step(name):
    assert first_crossing(trajectory([0.5, 9], [10, 10]), Rule(name, 1, 10), 0.5).steps == 1


@pytest.mark.parametrize("name", [EPOCH, WINDOW])
def test_threshold_met_at_the_very_last_step(name):
    found = trajectory([9, 9, 9, 0.5, 0.5, 0.5], SIZES * 2)
    assert first_crossing(found, Rule(name, 3, 10), 0.5).steps == 6


@pytest.mark.parametrize("name", [EPOCH, WINDOW])
def test_threshold_never_met(name):
    found = trajectory([9, 8, 7, 6, 5, 4], SIZES * 2)
    rule = Rule(name, 3, 10)
    assert first_crossing(found, rule, 1.0) is None
    assert last_reading(found, rule).steps == 6


@pytest.mark.parametrize("name", RuleName)
def test_no_steps_at_all(name):
    rule = Rule(name, 3, 10)
    assert first_crossing(Trajectory.empty(), rule, 1.0) is None
    assert last_reading(Trajectory.empty(), rule) is None


def test_an_unfinished_epoch_does_not_count():
    found = trajectory([9, 9, 9, 0, 0], [4, 4, 2, 4, 4])
    rule = Rule(EPOCH, 3, 10)
    assert first_crossing(found, rule, 1.0) is None
    assert last_reading(found, rule).steps == 3
    # Before the first epoch is complete, the loss is what was seen so far.
    assert last_reading(found[:2], rule).loss == 9


def test_since_skips_crossings_that_were_read_before():
    found = trajectory([0.5] * 9, SIZES * 3)
    assert first_crossing(found, Rule(EPOCH, 3, 10), 1.0, since=3).steps == 6


def test_huge_losses_do_not_hide_a_later_crossing():
    found = trajectory([1e30, 9, 9, 0.5, 0.5, 0.5], SIZES * 2)
    assert first_crossing(found, Rule(WINDOW, 3, 10), 0.5).steps == 6


def test_non_finite_loss():
    found = trajectory([1, float("nan"), 0.1], [10, 10, 10])
    assert found.first_non_finite() == 2
    assert trajectory([1, float("inf")], [1, 1]).first_non_finite() == 2
    assert trajectory([1, 2], [1, 1]).first_non_finite() is None
    assert first_crossing(found[:2], Rule(WINDOW, 1, 10), 0.5) is None


def slow_crossing(found: Trajectory, rule: Rule, threshold: float) -> int | None:
    """The rules as DESIGN words them, one step at a time."""
    for step in range(1, len(found) + 1):
        if rule.name is EPOCH:
            if step % rule.steps_per_epoch:
                continue
            batches = list(range(step - rule.steps_per_epoch, step))
            mean = sum(float(found.loss[i]) for i in batches) / len(batches)
        else:
            batches, samples = [], 0
            for i in reversed(range(step)):
                batches.append(i)
                samples += int(found.size[i])
                if samples >= rule.window:
                    break
            if samples < rule.window:
                continue
            mean = sum(float(found.loss[i]) * int(found.size[i]) for i in batches) / samples
        if mean <= threshold:
            # batches[0] is the latest of them; of two in the middle the later counts
            return batches[(len(batches) - 1) // 2] + 1 if rule.name is MIDDLE else step
    return None


@pytest.mark.parametrize("seed", range(40))
def test_rules_agree_with_an_obvious_implementation(seed):
    rng = np.random.default_rng(seed)
    n, batch = int(rng.integers(1, 40)), int(rng.integers(1, 20))
    batch = min(batch, n)
    epoch = [batch] * (n // batch) + ([n % batch] if n % batch else [])
    epochs = int(rng.integers(1, 8))
    sizes = (epoch * epochs)[: int(rng.integers(1, len(epoch) * epochs + 1))]
    losses = list(np.geomspace(3, 0.05, len(sizes)) * rng.uniform(0.5, 1.5, len(sizes)))
    found = trajectory(losses, sizes)
    for name in RuleName:
        for window in (1, batch, n, 2 * n):
            rule = Rule(name, len(epoch), window)
            for threshold in (2.5, 1.0, 0.3, 0.1, 0.01):
                reading = first_crossing(found, rule, threshold)
                assert (reading and reading.steps) == slow_crossing(found, rule, threshold)
