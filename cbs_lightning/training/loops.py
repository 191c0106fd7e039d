"""Which training loop a run uses: many steps per call, or Lightning's own with one.

The fast loop of this project's classifiers calls none of Lightning's hooks around a single step. A
run that needs any of them uses the general loop.
"""

from collections.abc import Iterable

from hydra.utils import get_object

from cbs_lightning.config.composition import OWN_MODELS
from cbs_lightning.config.extensions import loop_obstacles
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.data import ImageDataModule
from cbs_lightning.models import Classifier

# What Lightning calls, or lets a module decide, for every batch or step.
STEP_HOOKS = (
    "backward", "clip_gradients", "configure_callbacks", "configure_gradient_clipping",
    "configure_optimizers", "forward",
    "lr_scheduler_step", "manual_backward", "on_after_backward", "on_after_batch_transfer",
    "on_before_backward", "on_before_batch_transfer", "on_before_optimizer_step",
    "on_before_zero_grad", "on_train_batch_end", "on_train_batch_start", "optimizer_step",
    "optimizer_zero_grad", "training_step", "transfer_batch_to_device",
    "on_validation_model_zero_grad",
)  # fmt: skip
BATCH_HOOKS = ("on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device")


def overridden(one: type, base: type, names: Iterable[str]) -> list[str]:
    """The methods that a class does not inherit from `base`."""
    return [name for name in names if getattr(one, name, None) is not getattr(base, name, None)]


def reasons_for_general_loop(cfg: RunConfig) -> list[str]:
    """What the fast loop would leave out, in words; empty if the run can use it."""
    model = get_object(cfg.model["_target_"])
    if not issubclass(model, Classifier):
        return [f"{model.__name__} is no Classifier"]
    hooks = [] if model.hooks_per_chunk else overridden(model, Classifier, STEP_HOOKS)
    reasons = [f"{model.__name__} overrides {', '.join(hooks)}"] if hooks else []
    data = get_object(cfg.data["_target_"])
    if hooks := overridden(data, ImageDataModule, BATCH_HOOKS):
        reasons.append(f"{data.__name__} overrides {', '.join(hooks)}")
    return reasons + loop_obstacles(cfg)


def loop_line(cfg: RunConfig) -> str | None:
    """What to print of a run that does not use the fast loop."""
    reasons, target = reasons_for_general_loop(cfg), str(cfg.model["_target_"])
    if not is_classifier(cfg):
        whose = "" if target.startswith(OWN_MODELS) else "your module "
        return f"{whose}{target.rpartition('.')[2]} runs in Lightning's own loop"
    how = "runs in Lightning's own loop, one step per call"
    return f"{how}: {'; '.join(reasons)}" if reasons else None


def is_classifier(cfg: RunConfig) -> bool:
    """Whether the model is one of this project's classifiers, whose net is built for the images."""
    target = get_object(cfg.model["_target_"])
    return isinstance(target, type) and issubclass(target, Classifier)
