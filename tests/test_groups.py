"""Parameter groups by rule: which parameter is in which, and what is said where none is."""

import lightning
import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash
from cbs_lightning.errors import ConfigError
from cbs_lightning.models import ByteGPT
from cbs_lightning.models.resnet20 import ResNet20Net
from cbs_lightning.optim.groups import GroupedFactory, hidden_weights, make_optimizer
from cbs_lightning.results.result import Status
from cbs_lightning.sweep import sweep
from cbs_lightning.training.build import check_optimizer_fits, depends_on_net, optimizer_factory
from cbs_lightning.training.run import find_data, run
from tests.conftest import TINY
from tests.optimizers import OPTIMIZERS


class Stranger(nn.Module):
    """A module as people have them: an embedding, layers, a tied head, a norm."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def groups_of(module, rules, factory=torch.optim.AdamW):
    names = {parameter: name for name, parameter in module.named_parameters()}
    optimizer = make_optimizer(GroupedFactory(factory, rules), module)
    return [(group, [names[p] for p in group["params"]]) for group in optimizer.param_groups]


BLOCKS = ["blocks.0.weight", "blocks.1.weight"]
VECTORS = ["blocks.0.bias", "blocks.1.bias", "norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"vectors": {"max_dim": 1}}, [VECTORS, ["embedding.weight", *BLOCKS]]),
        ({"matrices": {"min_dim": 2}}, [["embedding.weight", *BLOCKS], VECTORS]),
        ({"blocks": {"name": r"^blocks\.\d"}}, [["blocks.0.weight", "blocks.0.bias",
          "blocks.1.weight", "blocks.1.bias"], ["embedding.weight", *VECTORS[2:]]]),
        ({"blocks": {"name": "blocks", "min_dim": 2}}, [BLOCKS, ["embedding.weight", *VECTORS]]),
        ({"hidden": {"hidden": True}}, [BLOCKS, None]),
        ({"all": {}}, [None]),
        # What takes the rest does so wherever it stands.
        ({"rest": {}, "vectors": {"max_dim": 1}}, [VECTORS, ["embedding.weight", *BLOCKS]]),
        # The first that fits has it.
        ({"vectors": {"max_dim": 1}, "blocks": {"name": "blocks"}, "rest": {}},
         [VECTORS, BLOCKS, ["embedding.weight"]]),
    ],
)  # fmt: skip
def test_a_parameter_is_in_the_first_group_whose_conditions_it_meets(rules, expected):
    found = [names for _, names in groups_of(Stranger(), rules)]
    everything = [name for name, _ in Stranger().named_parameters()]
    assert sorted(name for names in found for name in names) == sorted(everything)
    for names, wanted in zip(found, expected, strict=True):
        assert wanted is None or names == wanted


def test_a_group_has_its_settings_and_else_the_optimizers():
    rules = {"vectors": {"max_dim": 1, "weight_decay": 0.0, "lr": 0.5}}
    (vectors, _), (rest, _) = groups_of(Stranger(), rules)
    assert (vectors["lr"], vectors["weight_decay"]) == (0.5, 0.0)
    assert (rest["lr"], rest["weight_decay"]) == (0.001, 0.01)
    assert "max_dim" not in vectors


def test_without_rules_the_optimizer_gets_plain_parameters():
    """As it always did: its checkpoints have the same groups."""
    module = Stranger()
    (group,) = make_optimizer(torch.optim.SGD, module).param_groups
    assert group["params"] == list(module.parameters()) and "param_names" not in group


def test_a_group_that_no_parameter_is_left_for_is_named_in_a_line():
    rules = {"heads": {"name": "heads", "lr": 1.0}}
    with pytest.raises(ConfigError) as error:
        groups_of(Stranger(), rules)
    message = str(error.value)
    assert message.startswith("optimizer.groups.heads={'name': 'heads'}: no parameter")
    assert "embedding.weight (7, 4)" in message and "and 3 more" in message


def test_a_group_without_conditions_may_be_empty():
    ((_, names),) = groups_of(nn.Linear(2, 2, bias=False), {"all": {"min_dim": 1}, "rest": {}})
    assert names == ["weight"]


def test_groups_come_from_the_command_line_and_decide_the_losses():
    plain = compose(["optimizer=adamw"])
    grouped = compose(["optimizer=adamw", "+optimizer.groups.vectors={max_dim:1,weight_decay:0.0}"])
    check(grouped)
    assert config_hash(plain) != config_hash(grouped)
    label = "adamw vectors.max_dim=1 vectors.weight_decay=0.0"
    assert grouped.names.variant == label


BAD = [
    ("+optimizer.groups=5", "optimizer.groups=5", "group of keys"),
    ("+optimizer.groups.a=5", "optimizer.groups.a=5", "group of keys"),
    ("+optimizer.groups.a.speed=1", "optimizer.groups.a.speed=1", "weight_decay"),
    ("+optimizer.groups.a.lr=0", "optimizer.groups.a.lr=0", "> 0"),
    ("+optimizer.groups.a.betas=[1,1]", "optimizer.groups.a.betas=[1, 1]", "[0, 1)"),
    ("+optimizer.groups.a.min_dim=-1", "optimizer.groups.a.min_dim=-1", ">= 0"),
    ("+optimizer.groups.a.hidden=1", "optimizer.groups.a.hidden=1", "true or false"),
    ("+optimizer.groups.a.name='(a'", "optimizer.groups.a.name=(a", "regular expression"),
    ("+optimizer.groups.a.weight_decay=-1", "optimizer.groups.a.weight_decay=-1", ">= 0"),
    ("optimizer=muon optimizer.groups.rest.algorithm=sgd", "optimizer=muon", "muon or adamw"),
    ("optimizer=muon optimizer.adjust_lr=none", "optimizer=muon", "match_rms_adamw"),
    ("optimizer=muon optimizer.ns_steps=0", "optimizer=muon", "ns_steps"),
    ("optimizer=muon optimizer.ns_steps=2.5", "optimizer=muon", "whole number >= 1, not 2.5"),
    ("optimizer=muon optimizer.ns_coefficients=[1,a,2]", "optimizer=muon", "three numbers"),
    ("optimizer=muon optimizer.ns_coefficients=5", "optimizer=muon", "three numbers, not 5"),
    ("optimizer=muon +optimizer.groups.a.lr=1", "optimizer.groups.a={'lr': 1}", "neither has rest"),
    ("optimizer=schedule_free optimizer.betas=[0,0.9]", "optimizer=schedule_free", "(0, 1)"),
    ("optimizer=yogi optimizer.initial=-1", "optimizer=yogi", "initial"),
    ("optimizer=adafactor optimizer.beta2_decay=1", "optimizer=adafactor", "beta2_decay"),
    ("optimizer=signum optimizer.momentum=1", "optimizer.momentum=1", "[0, 1)"),
    ("optimizer=rmsprop optimizer.alpha=abc", "optimizer.alpha=abc", "number"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "named", "allowed"), BAD, ids=[bad[0] for bad in BAD])
def test_a_bad_value_is_named_with_what_is_allowed(overrides, named, allowed):
    with pytest.raises(ConfigError) as error:
        check(compose(overrides.split(" ")))
    message = str(error.value)
    assert message.startswith(f"{named}:") and allowed in message and "\n" not in message


@pytest.mark.parametrize("many", [[], ["-m", "batch_size=64,128"]])
def test_muon_on_a_net_without_hidden_matrices_takes_one_line(cli, tmp_path, many):
    """Also in a sweep, before its first job."""
    outcome = cli(*many, *TINY, "optimizer=muon", f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "optimizer.groups.matrices=" in outcome.err and "no parameter of the net" in outcome.err
    assert not (tmp_path / "out").exists()


def test_an_absent_package_takes_one_line(monkeypatch):
    monkeypatch.setattr("cbs_lightning.optim.packages.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"optimizer=soap: needs the package pytorch-optimizer"):
        check(compose(["optimizer=soap"]))
    check(compose(["optimizer=adam"]))


def test_a_plain_optimizer_of_the_configuration_takes_groups():
    """Whoever instantiates the settings by hand finds a class that takes no such key."""
    settings = dict(compose(["optimizer=muon"]).optimizer)
    del settings["groups"]
    weight = nn.Parameter(torch.zeros(3, 3))
    optimizer = instantiate(settings)([{"params": [weight]}])
    assert optimizer.param_groups[0]["algorithm"] == "muon"
    with pytest.raises(ValueError, match="needs matrices"):
        instantiate(settings)([nn.Parameter(torch.zeros(3))])


class Vision(nn.Module):
    """As vision transformers are: tables and a class token beside layers, made before them."""

    def __init__(self):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.positions = nn.Parameter(torch.zeros(1, 17, 4))
        self.patches = nn.Conv2d(3, 4, 2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.mlp = nn.Linear(4, 4)
        self.norm = nn.LayerNorm([4, 4])
        self.head = nn.Linear(4, 10)


class Recurrent(nn.Module):
    """With its input's layer frozen, and an embedding in the middle."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4).requires_grad_(False)
        self.middle = nn.Linear(4, 4)
        self.label = nn.Embedding(3, 4)
        self.lstm = nn.LSTM(4, 4)
        self.head = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Stranger, ["blocks.0.weight", "blocks.1.weight"]),
        (Vision, ["attention.in_proj_weight", "attention.out_proj.weight", "mlp.weight"]),
        (Recurrent, ["middle.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"]),
        (lambda: ByteGPT(width=4, layers=1), [f"blocks.0.{name}.weight" for name in
         ("query_key_value", "project", "expand", "contract")]),
        (lambda: ResNet20Net(1, 10), [f"blocks.{number}.{name}.weight" for number in range(9)
         for name in ("conv1", "conv2", "shortcut.0")
         if name != "shortcut.0" or number in (3, 6)]),
    ],
    ids=["tied", "vision transformer", "recurrent, frozen", "byte_gpt", "resnet20"],
)  # fmt: skip
def test_hidden_is_what_lies_between_the_first_layer_and_the_last(make, expected):
    module = make()
    names = {parameter: name for name, parameter in module.named_parameters()}
    assert {names[weight] for weight in hidden_weights(module)} == set(expected)


def test_muon_leaves_tables_to_adamw():
    factory = optimizer_factory(compose(["optimizer=muon"]).optimizer)
    net = ByteGPT(width=4, layers=1)
    matrices, rest = make_optimizer(factory, net).param_groups
    assert (matrices["algorithm"], rest["algorithm"]) == ("muon", "adamw")
    assert len(matrices["params"]) == 4
    assert {net.embed.weight, net.position, net.head.weight} <= {*rest["params"]}


def test_frozen_parameters_are_left_out_unless_asked_for():
    module = Recurrent()
    (group,) = make_optimizer(torch.optim.SGD, module).param_groups
    assert module.stem.weight not in {*group["params"]}
    (group,) = make_optimizer(torch.optim.SGD, module, frozen=True).param_groups
    assert {*group["params"]} == {*module.parameters()}


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("+optimizer.groups.vectors={max_dim:1,weight_decay:0.0}",
         "optimizer.groups.vectors={'max_dim': 1, 'weight_decay': 0.0}: muon needs matrices"),
        ("optimizer.groups.rest.algorithm=muon", "optimizer.groups.rest={'algorithm': 'muon'"),
        ("~optimizer.groups.rest", "optimizer.groups=matrices: muon needs matrices"),
    ],
)  # fmt: skip
def test_vectors_that_muon_is_given_are_named_with_what_takes_them(overrides, named):
    factory = optimizer_factory(compose(["optimizer=muon", *overrides.split()]).optimizer)
    with pytest.raises(ConfigError) as error:
        make_optimizer(factory, Stranger())
    message = str(error.value)
    assert message.startswith(named) and "algorithm=adamw takes any" in message


def test_such_a_group_ends_a_sweep_before_it_starts(cli, tmp_path):
    outcome = cli("-m", *TINY, "model=resnet20", "batch_size=64,128", "optimizer=muon",
                  "+optimizer.groups.vectors={max_dim:1,weight_decay:0.0}",
                  f"output_dir={tmp_path / 'out'}")  # fmt: skip
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "optimizer.groups.vectors=" in outcome.err
    assert not (tmp_path / "out").exists()


REFUSED = [
    (["optimizer=muon", "~optimizer.groups"], "optimizer=muon: muon needs matrices"),
    (["optimizer=adam", "optimizer._target_=torch.optim.Muon", "~optimizer.betas",
      "~optimizer.fused"], "optimizer=adam: Muon only supports 2D parameters"),
]  # fmt: skip


@pytest.mark.parametrize("many", [[], ["-m", "batch_size=64,128"]], ids=["one", "sweep"])
@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=["muon", "torch"])
def test_a_net_that_an_optimizer_without_groups_refuses_takes_one_line(
    cli, tmp_path, overrides, said, many
):
    """Before the first job, so that no directory of a failed run is left."""
    outcome = cli(*many, *TINY, *overrides, f"output_dir={tmp_path / 'out'}")
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert said in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_what_depends_on_the_net_is_tried_with_it(name):
    """A sweep of many optimizers starts at once."""
    assert depends_on_net(compose([f"optimizer={name}"])) == (name == "muon")


def test_a_sweep_tries_an_optimizer_with_a_net_once(tiny, monkeypatch):
    tried = []
    monkeypatch.setattr(sweep, "check_optimizer_fits", lambda cfg, _: tried.append(cfg))
    sweep._check_optimizers(
        tiny("optimizer=muon", f"optimizer.lr={lr}", f"batch_size={b}", f"seed={seed}", *groups)
        for lr in (1, 2) for b in (64, 128) for seed in (0, 1)
        for groups in ((), ("~optimizer.groups",))
    )  # fmt: skip
    assert ["groups" in cfg.optimizer for cfg in tried] == [True, False]


class BuiltLater(lightning.LightningModule):
    """As Lightning recommends for large nets."""

    def configure_model(self):
        self.layer = nn.Linear(2, 2)


def test_a_module_without_layers_yet_is_not_refused(strange):
    cfg = strange("optimizer=muon", f"model._target_={__name__}.BuiltLater")
    source = find_data(cfg)
    source.setup()
    check_optimizer_fits(cfg, source)


@pytest.mark.parametrize(
    "overrides",
    ["optimizer.betas=[0,0.999]", "optimizer=adamw optimizer.betas=[0.9,0]",
     "optimizer=adamw +optimizer.groups.vectors={max_dim:1,betas:[0,0.9]}"],
)  # fmt: skip
def test_a_whole_number_is_a_beta(tiny, overrides):
    """torch wants both of one type, and said so in its own words."""
    cfg = tiny(*overrides.split(), "stop.max_steps=2")
    check(cfg)
    assert run(cfg).status is Status.EXHAUSTED


def test_a_beta_of_zero_has_the_hash_it_had():
    """And lion, which takes whole numbers, the label."""
    assert config_hash(compose(["optimizer.betas=[0,0.999]"])) == "672c50d305ea4f94"
    assert compose(["optimizer=lion", "optimizer.betas=[0,0.9]"]).names.variant == (
        "lion betas=0,0.9"
    )


def test_a_line_names_the_groups_whose_settings_moved(tiny, capsys):
    run(tiny("optimizer=adamw", "+optimizer.groups.v={max_dim:1,weight_decay:0.1,lr:0.001}",
             "batch_size=256", "lr_reference_batch_size=64", "lr_scaling=sqrt",
             "weight_decay_scaling=sqrt", "stop.max_steps=1"))  # fmt: skip
    said = capsys.readouterr().out
    assert "learning rate of groups.v 0.002" in said and "weight decay of groups.v 0.2" in said
    assert "groups.v.weight decay" not in said
