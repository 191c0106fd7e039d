"""Theorem 3.1 and Sections 3 and 4 against derivations of their own."""

import math

import numpy as np
import pytest
import sympy
from scipy.optimize import minimize_scalar

from cbs_lightning.theory import adam_lower_bound, constants
from cbs_lightning.theory.theorem import Constants, h, lower_bound

SGD = {"lr": 0.05, "sigma2": 2.0, "G": 0.7, "dist": 1.3}
MOMENTUM = SGD | {"beta1": 0.8}
ADAM = MOMENTUM | {"beta2": 0.99, "d": 5, "D": 0.9, "M": 3.0, "v_star": 0.04}
SETTINGS = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}
OPTIMIZERS = pytest.mark.parametrize("optimizer", list(SETTINGS))


def some(optimizer: str, **changed):
    return constants(optimizer, **(SETTINGS[optimizer] | changed))


def test_the_constants_are_those_of_the_papers_table():
    sgd, momentum, adam = (some(name) for name in SETTINGS)
    a, s2, G, dist = SGD.values()
    b1, b2, d, D, M, v = (ADAM[name] for name in ("beta1", "beta2", "d", "D", "M", "v_star"))
    shift = dist * (G * (1 - b1) / b1 + 2 * math.sqrt(s2 + G**2) * (1 / b1 + 2 * (1 - b1)))
    expected = (
        (dist**2 / (2 * a), s2 * a / 2, G**2 * a / 2),
        (dist**2 / (2 * a * b1), s2 * a / (2 * b1), G**2 * a / (2 * b1) + shift),
        (
            d * D * math.sqrt(M) / (2 * a * b1 * math.sqrt(1 - b2)),
            s2 * a / (2 * math.sqrt(v) * b1 * (1 - b1)),
            G**2 * a / (2 * math.sqrt(v) * b1 * (1 - b1)) + shift,
        ),
    )
    for found, wanted in zip((sgd, momentum, adam), expected, strict=True):
        assert (found.c1, found.c2, found.c3) == pytest.approx(wanted, rel=1e-12)
    assert h(b1, sigma2=s2, G=G, dist=dist) == pytest.approx(shift)


def test_the_first_iterate_may_be_nearer_than_dist():
    for optimizer in ("sgd", "momentum"):
        half = some(optimizer, theta1_dist2=SGD["dist"] ** 2 / 2)
        assert half.c1 == pytest.approx(some(optimizer).c1 / 2)


@OPTIMIZERS
def test_steps_solve_bound_equals_eps(optimizer):
    c = some(optimizer)
    eps = c.c3 + 0.3
    for b in (2 * c.c2 / 0.3, 10.0, 1e4):
        assert c.vi_bound(c.steps(b, eps), b) == pytest.approx(eps, rel=1e-12)
        assert c.sfo(b, eps) == pytest.approx(c.steps(b, eps) * b)


def test_monotony_convexity_and_the_minimiser_by_symbolic_differentiation():
    b, c1, c2, gap = sympy.symbols("b C1 C2 gap", positive=True)
    steps = sympy.solve(
        sympy.Eq(c1 / sympy.Symbol("K") + c2 / b, gap), sympy.Symbol("K"), dict=True
    )[0][sympy.Symbol("K")]
    sfo = steps * b
    excess = sympy.Symbol("excess", positive=True)  # b beyond the pole
    inside = {b: c2 / gap + excess}
    assert sympy.simplify(sympy.diff(steps, b).subs(inside)).is_negative
    assert sympy.simplify(sympy.diff(steps, b, 2).subs(inside)).is_positive
    assert sympy.simplify(sympy.diff(sfo, b, 2).subs(inside)).is_positive
    (minimiser,) = sympy.solve(sympy.diff(sfo, b), b)
    assert sympy.simplify(minimiser - 2 * c2 / gap) == 0
    # the paper prints 2·C1·C2/gap², half of what its own K(b)·b is there
    assert sympy.simplify(sfo.subs(b, minimiser) - 4 * c1 * c2 / gap**2) == 0


@OPTIMIZERS
def test_the_minimum_by_direct_minimisation(optimizer):
    c = some(optimizer)
    eps = c.c3 + 0.2
    pole = c.c2 / 0.2
    found = minimize_scalar(
        lambda excess: c.sfo(pole * (1 + math.exp(excess)), eps), bounds=(-9, 9), method="bounded"
    )
    assert c.critical_batch(eps) == pytest.approx(pole * (1 + math.exp(found.x)), rel=1e-4)
    assert c.min_sfo(eps) == pytest.approx(found.fun, rel=1e-8)
    assert c.min_sfo(eps) == pytest.approx(c.sfo(c.critical_batch(eps), eps))


def test_limits():
    c = some("adam")
    eps = c.c3 + 0.5
    assert c.steps(1e12, eps) == pytest.approx(c.c1 / 0.5, rel=1e-9)
    just_beyond = c.c2 / 0.5 * (1 + 1e-9)
    assert c.steps(just_beyond, eps) > 1e8 * c.c1
    assert c.vi_bound(1e15, 1e15) == pytest.approx(c.c3)
    # beta1 -> 1: h falls to 2·Dist·sqrt(sigma2 + G²), which is not 0, and Adam's C2 has no limit
    values = [h(beta1, sigma2=2.0, G=0.7, dist=1.3) for beta1 in np.linspace(0.01, 0.999, 200)]
    assert (np.diff(values) < 0).all()
    least = 2 * 1.3 * math.sqrt(2.0 + 0.49)
    assert h(1 - 1e-9, sigma2=2.0, G=0.7, dist=1.3) == pytest.approx(least, rel=1e-6)
    assert min(values) > least > 1.3 * 0.7  # more than Dist·G, which bounds VI already
    near_one = some("momentum", beta1=1 - 1e-9)
    assert near_one.c1 == pytest.approx(some("sgd").c1) and near_one.c2 == pytest.approx(
        some("sgd").c2
    )
    assert some("adam", beta1=1 - 1e-9).c2 > 1e8 * some("sgd").c2


def test_the_sharper_sum_of_adam():
    c, K, b = some("adam"), 7, 3.0
    roots = [math.sqrt(1 - ADAM["beta2"] ** (k + 1)) for k in range(1, K + 1)]
    by_hand = c.c1 / K + c.h + (c.c2 / b + c.c3 - c.h) * sum(roots) / K
    assert c.vi_bound_sum(K, b) == pytest.approx(by_hand, rel=1e-12)
    for steps in (1, 10, 1000, 100_000):
        assert c.vi_bound_sum(steps, b) <= c.vi_bound(steps, b)
    assert c.vi_bound_sum(10**6, b) == pytest.approx(c.vi_bound(10**6, b), rel=1e-3)
    # beta2 close to one makes the sum small, and the first term large
    sums = [some("adam", beta2=beta2) for beta2 in (0.9, 0.99, 0.999)]
    weights = [one.vi_bound_sum(50, b) - one.c1 / 50 for one in sums]
    assert weights == sorted(weights, reverse=True)
    assert [one.c1 for one in sums] == sorted(one.c1 for one in sums)


def test_outside_the_domain_there_is_none():
    c = some("sgd")
    pole = c.c2 / 0.1
    assert c.steps(pole, c.c3 + 0.1) is None and c.sfo(pole / 2, c.c3 + 0.1) is None
    for eps in (c.c3, c.c3 / 2):
        assert c.steps(10, eps) is c.sfo(10, eps) is c.critical_batch(eps) is c.min_sfo(eps) is None
    found = c.steps(np.array([pole / 2, pole, 2 * pole]), c.c3 + 0.1)
    assert np.isnan(found[:2]).all() and found[2] > 0
    assert np.isnan(c.sfo([1.0, 2.0], c.c3)).all()
    silent = some("sgd", sigma2=0.0)  # no noise: K is the same for all b
    assert silent.critical_batch(1.0) is None
    assert silent.steps(1, 1.0) == silent.steps(100, 1.0)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"sigma2": -1.0}, "sigma2 must not be negative"),
        ({"G": -1.0}, "G must be positive"),
        ({"dist": math.nan}, "dist must be positive"),
        ({"beta1": 0.0}, r"beta1 must be in \(0, 1\)"),
        ({"beta1": 1.0}, r"beta1 must be in \(0, 1\)"),
        ({"beta2": 1.0}, r"beta2 must be in \[0, 1\)"),
        ({"beta2": -0.1}, r"beta2 must be in \[0, 1\)"),
        ({"v_star": 0.0}, "v_star must be positive"),
        ({"M": math.inf}, "M must be positive"),
        ({"d": 0}, "d must be positive"),
        ({"d": 1.5}, r"^d must be a whole number, not 1\.5$"),
        ({"d": None, "M": None}, "adam needs d, M"),
        ({"lr": "1e-3"}, "lr must be a number, not '1e-3'"),
    ],
)
def test_a_parameter_outside_its_range_is_named(changed, says):
    with pytest.raises(ValueError, match=says):
        some("adam", **changed)


def test_what_an_optimizer_does_not_have_is_refused():
    with pytest.raises(ValueError, match="sgd has no beta1"):
        some("sgd", beta1=0.9)
    with pytest.raises(ValueError, match="momentum needs beta1"):
        constants("momentum", **SGD)
    with pytest.raises(ValueError, match="must be sgd, momentum or adam, not 'lion'"):
        constants("lion", **SGD)
    with pytest.raises(ValueError, match="eps must be positive"):
        some("sgd").critical_batch(0.0)
    with pytest.raises(ValueError, match="K must be positive"):
        some("sgd").vi_bound(0, 4)
    with pytest.raises(ValueError, match="K must be a whole number"):
        some("adam").vi_bound_sum(1.5, 4)
    with pytest.raises(ValueError, match="b must be positive"):
        some("sgd").steps(math.inf, 1.0)
    assert some("adam", beta2=0.0).c1 > 0
    assert some("adam", beta2=0.0).vi_bound_sum(9, 4) == some("adam", beta2=0.0).vi_bound(9, 4)


@pytest.mark.parametrize("size", [1e-320, 1.0, 1e300, 1.7e308, [1e-320, 1e300]])
@pytest.mark.parametrize("eps", [1e-320, 1.0, 1e300, 1.7e308])
@pytest.mark.filterwarnings("error")
def test_numbers_at_the_ends_of_what_floats_hold_are_answered_in_silence(size, eps):
    """They were once answered with numpy's warning of an overflow, and K with 0."""
    for c in (some("sgd"), Constants(1e300, 1e300, 0.0), Constants(1e300, 0.0, 0.0)):
        for found in (c.steps(size, eps), c.sfo(size, eps)):
            assert found is None or (np.isnan(found) | (np.asarray(found) >= 0)).all()
        assert (np.asarray(c.vi_bound(size, 1e-320)) > 0).all()
    assert Constants(5.0, 1.0, 0.0).steps(1e300, 1e300) == pytest.approx(5e-300)


def test_lower_bounds_of_section_3():
    given = {"lr": 1e-3, "sigma2": 0.5}
    own = {"sgd": {}, "momentum": {"beta1": 0.9}, "adam": {"beta1": 0.9, "v_star": 1e-4}}
    bounds = {name: lower_bound(name, eps=0.01, **given, **own[name]) for name in own}
    assert bounds["sgd"] == pytest.approx(0.05)
    assert bounds["momentum"] == pytest.approx(0.05 / 0.9)
    assert bounds["adam"] == pytest.approx(0.05 / (1e-2 * 0.9 * 0.1))
    assert bounds["sgd"] < bounds["momentum"] < bounds["adam"]
    for name, settings in own.items():
        c = some(name, **given, **settings)
        eps = c.c3 + 0.01
        assert lower_bound(name, eps=eps, **given, **settings) < c.critical_batch(eps)
    with pytest.raises(ValueError, match="adam needs v_star"):
        lower_bound("adam", beta1=0.9, eps=0.01, **given)


def test_estimates_of_section_4():
    given = {"sigma2": 1e-2, "eps": 1e-2, "lr": 1e-3, "beta1": 0.9}
    cifar10 = adam_lower_bound(n=50_000, d=3072, **given)
    mnist = adam_lower_bound(n=60_000, d=784, **given)
    assert (round(cifar10), round(mnist)) == (1002, 2381)  # the paper prints 1010 and 2380
    # its closed form, sigma2·n / (90·sqrt(d)·eps²)
    assert cifar10 == pytest.approx(1e-2 * 50_000 / (90 * math.sqrt(3072) * 1e-4))
    with pytest.raises(ValueError, match="n must be positive"):
        adam_lower_bound(n=0, d=784, **given)
    for name, counts in (("n", (2.5, 784)), ("d", (60_000, 2.5))):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number, not 2\.5$"):
            adam_lower_bound(n=counts[0], d=counts[1], **given)
