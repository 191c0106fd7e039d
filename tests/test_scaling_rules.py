"""Rules that move an optimizer's settings with the batch size."""

import math

import pytest

from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash
from cbs_lightning.errors import ConfigError
from cbs_lightning.training.run import run
from tests.conftest import TINY

N = 1797
B0 = "lr_reference_batch_size=64"


def settings(*overrides):
    return compose([B0, *overrides]).optimizer_settings(N)


@pytest.mark.parametrize("batch_size", [4, 64, 256, 512])
def test_sqrt_sde_moves_lr_betas_and_eps(batch_size):
    """Malladi et al. (2022): the square root scaling rule for Adam."""
    found = settings("scaling_rule=sqrt_sde", f"batch_size={batch_size}")
    kappa = batch_size / 64
    assert found["lr"] == pytest.approx(1e-3 * math.sqrt(kappa))
    assert found["betas"] == pytest.approx([1 - kappa * 0.1, 1 - kappa * 0.001])
    assert found["eps"] == pytest.approx(1e-8 / math.sqrt(kappa))
    assert found["weight_decay"] == 0


@pytest.mark.parametrize("batch_size", [1, 64, 1024])
def test_half_life_keeps_that_of_beta2_in_samples(batch_size):
    """Marek et al. (2025): the second moments forget half of a sample after as many samples."""
    found = settings("scaling_rule=half_life", f"batch_size={batch_size}", "lr_scaling=sqrt")

    def half_life(beta, size):
        return size * math.log(0.5) / math.log(beta)

    assert half_life(found["betas"][1], batch_size) == pytest.approx(half_life(0.999, 64))
    assert found["betas"][0] == 0.9 and found["eps"] == 1e-8
    assert found["lr"] == pytest.approx(1e-3 * math.sqrt(batch_size / 64))


def test_linear_moves_the_learning_rate_alone():
    found = settings("scaling_rule=linear", "batch_size=256", "optimizer=sgd")
    assert found["lr"] == pytest.approx(4e-3) and found["weight_decay"] == 0


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 2), ("linear", 4)])
def test_the_weight_decay_scales_on_its_own(scaling, factor):
    found = settings("optimizer=adamw", f"weight_decay_scaling={scaling}", "batch_size=256")
    assert found["weight_decay"] == pytest.approx(0.01 * factor) and found["lr"] == 1e-3


def test_at_the_reference_everything_is_as_given():
    for rule in ("sqrt_sde", "half_life", "linear"):
        found = settings(f"scaling_rule={rule}", "weight_decay_scaling=linear", "optimizer=adamw")
        assert found == compose(["optimizer=adamw"]).optimizer, rule


def test_a_batch_larger_than_the_data_scales_as_the_data():
    whole, larger = (settings("scaling_rule=half_life", f"batch_size={b}") for b in (N, 65536))
    assert whole == larger


def test_groups_scale_as_well():
    rules = ["lr_scaling=linear", "weight_decay_scaling=sqrt"]
    own = ["optimizer=muon", "optimizer.groups.rest.weight_decay=0.5"]
    found = settings(*own, *rules, "batch_size=256")
    assert found["lr"] == pytest.approx(0.08)
    assert found["groups"]["rest"]["lr"] == pytest.approx(4e-3)
    assert found["groups"]["rest"]["weight_decay"] == pytest.approx(1.0)
    assert "lr" not in found["groups"]["matrices"]


def test_half_life_moves_the_group_that_has_betas():
    own = ["optimizer=muon", "scaling_rule=half_life", "batch_size=256"]
    check(compose([B0, *own]))
    found = settings(*own)
    assert found["groups"]["rest"]["betas"] == pytest.approx([0.9, 0.999**4])
    assert found["lr"] == 0.02 and "betas" not in found


@pytest.mark.parametrize(
    ("reference", "betas", "largest"),
    [
        (64, [0.9, 0.999], 639),
        (128, [0.9, 0.999], 1279),
        (100, [0.99, 0.95], 1999),
        (64, [0, 0.9], 64),
    ],
)
def test_a_batch_size_out_of_range_names_the_largest_that_is_allowed(reference, betas, largest):
    def asked(batch_size):
        return compose([f"lr_reference_batch_size={reference}", "scaling_rule=sqrt_sde",
                        f"optimizer.betas={betas}", f"batch_size={batch_size}"])  # fmt: skip

    assert min(asked(largest).optimizer_settings(10**6)["betas"]) >= 0
    with pytest.raises(ConfigError, match=rf"^batch_size={largest + 1}: .* allowed is {largest}$"):
        asked(largest + 1).optimizer_settings(10**6)
    with pytest.raises(ConfigError, match=rf"^batch_size=9999: .* allowed is {largest}$"):
        asked(9999).optimizer_settings(largest + 1)  # named as it was asked for


@pytest.mark.parametrize("sweeper", ["grid", "critical_batch"])
def test_a_sweep_out_of_range_does_not_start(cli, tmp_path, sweeper):
    out = tmp_path / "out"
    outcome = cli("-m", *TINY, f"hydra/sweeper={sweeper}", "batch_size=64,256,1024", B0,
                  "scaling_rule=sqrt_sde", f"output_dir={out}")  # fmt: skip
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "batch_size=1024" in outcome.err and "largest allowed is 639" in outcome.err
    assert not out.exists()


def test_a_rule_for_the_learning_rate_beside_a_tuned_one_does_not_start(cli, tmp_path):
    out = tmp_path / "out"
    outcome = cli("-m", *TINY, "lr_scaling=tuned", "scaling_rule=sqrt_sde", "batch_size=32,64",
                  f"output_dir={out}")  # fmt: skip
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "scaling_rule=sqrt_sde: sets the learning rate, as lr_scaling=tuned does" in outcome.err
    assert not out.exists()


def test_a_single_run_out_of_range_leaves_nothing(cli, tmp_path):
    out = tmp_path / "out"
    outcome = cli(*TINY, "batch_size=640", B0, "scaling_rule=sqrt_sde", f"output_dir={out}")
    assert outcome.code == 1 and "largest allowed is 639" in outcome.err
    assert not out.exists()


BAD = [
    ("scaling_rule=cubic", "scaling_rule=cubic", "half_life, linear, none, sqrt_sde"),
    ("weight_decay_scaling=cubic", "weight_decay_scaling=cubic", "linear, none, sqrt"),
    ("scaling_rule=sqrt_sde lr_scaling=sqrt", "scaling_rule=sqrt_sde", "lr_scaling=sqrt"),
    ("scaling_rule=linear lr_scaling=linear", "scaling_rule=linear", "one of them to none"),
    ("scaling_rule=sqrt_sde optimizer=sgd", "scaling_rule=sqrt_sde", "sgd has no betas and no eps"),
    ("scaling_rule=half_life optimizer=momentum", "scaling_rule=half_life", "has no betas"),
    ("scaling_rule=sqrt_sde optimizer=lion", "scaling_rule=sqrt_sde",
     "lion has no eps; allowed with it: half_life, linear, none"),
    ("scaling_rule=sqrt_sde optimizer=muon", "scaling_rule=sqrt_sde",
     "muon has betas only in groups.rest; allowed with it: half_life, linear, none"),
    ("weight_decay_scaling=sqrt optimizer=momentum_ema", "weight_decay_scaling=sqrt",
     "momentum_ema has no optimizer.weight_decay"),
    ("weight_decay_scaling=sqrt optimizer=adam", "weight_decay_scaling=sqrt",
     "none to scale: set optimizer.weight_decay above 0; allowed without: none"),
    ("weight_decay_scaling=linear optimizer=muon", "weight_decay_scaling=linear", "none to scale"),
    ("weight_decay_scaling=linear optimizer=adamw optimizer.weight_decay=0",
     "weight_decay_scaling=linear", "none to scale"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "named", "allowed"), BAD, ids=[bad[0] for bad in BAD])
def test_rules_that_contradict_or_have_nothing_to_move_take_one_line(overrides, named, allowed):
    with pytest.raises(ConfigError) as error:
        check(compose(overrides.split(" ")))
    message = str(error.value)
    assert message.startswith(f"{named}:") and allowed in message and "\n" not in message


@pytest.mark.parametrize(
    "overrides",
    ["optimizer=adamw", "optimizer.weight_decay=0.1", "optimizer=muon optimizer.weight_decay=0.1",
     "optimizer=muon optimizer.groups.rest.weight_decay=0.1"],
)  # fmt: skip
def test_a_weight_decay_of_any_group_can_be_scaled(overrides):
    check(compose([*overrides.split(), "weight_decay_scaling=sqrt"]))


def test_half_life_goes_with_any_learning_rate():
    for scaling in ("none", "sqrt", "linear"):
        check(compose([f"lr_scaling={scaling}", "scaling_rule=half_life"]))


def test_the_result_has_what_came_of_it_and_the_label_the_rule(tiny, capsys):
    rule = ["batch_size=256", "lr_reference_batch_size=64", "scaling_rule=sqrt_sde"]
    cfg = tiny(*rule, "stop.max_steps=3")
    result = run(cfg)
    assert result.variant == "adam scaling_rule=sqrt_sde"
    assert result.lr == pytest.approx(2e-3)
    assert result.hyperparameters["betas"] == pytest.approx([0.6, 0.996])
    assert result.hyperparameters["eps"] == pytest.approx(5e-9)
    assert result.configuration["optimizer"]["betas"] == [0.9, 0.999]
    said = ("learning rate 0.002, betas [0.6, 0.996], eps 5e-09 by scaling_rule=sqrt_sde; "
            "at b = 64 learning rate 0.001, betas [0.9, 0.999], eps 1e-08\n")  # fmt: skip
    assert said in capsys.readouterr().out
    by_hand = tiny("batch_size=256", "optimizer.lr=0.002", "optimizer.eps=5e-9", "stop.max_steps=3",
                   f"optimizer.betas={result.hyperparameters['betas']}")  # fmt: skip
    assert run(by_hand).loss == result.loss


def test_a_rule_is_one_variant_over_the_batch_sizes_and_part_of_the_hash():
    sizes = [compose([B0, "scaling_rule=half_life", f"batch_size={b}"]) for b in (4, 64, 256)]
    assert {cfg.names.variant for cfg in sizes} == {"adam scaling_rule=half_life"}
    other = ["lr_reference_batch_size=32"]
    rules = [[], ["scaling_rule=half_life"], ["scaling_rule=linear"], ["weight_decay_scaling=sqrt"]]
    hashes = {config_hash(compose(rule)) for rule in rules}
    assert len(hashes) == len(rules)
    with_reference = {config_hash(compose([*rule, *other])) for rule in rules}
    assert len(hashes | with_reference) == 2 * len(rules) - 1  # without a rule it does not matter
    label = compose(["scaling_rule=linear", *other]).names.variant
    assert label == "adam scaling_rule=linear lr_reference_batch_size=32"
