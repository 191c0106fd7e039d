"""What --help prints: one screen."""

import textwrap

from cbs_lightning.cli.known import GROUPS, options

WIDTH = 100
START = """\
Which batch size should I use with this optimizer? Trains until the loss falls to a threshold and
counts the steps K. The critical batch size is the one with the smallest K times batch size.

Start with (in a clone, cbs-train is python train.py):
  cbs-train                                             one run: Adam, b = 64, digits
  cbs-train -m optimizer=adam,sgd batch_size=8,16,32    a sweep: all combinations, and the answer
  cbs-train -m experiment=digits                        the demo's sweep
  cbs-train -m hydra/sweeper=critical_batch             a search: fewer runs than a sweep

Choose one of (group=option):
"""
KEYS = """
Keys (key=value; all of them with their defaults: cbs-train --cfg job):
  what is run    batch_size  seed  optimizer.lr, .betas, ...  lr_scaling  warmup_samples
  when to stop   stop.loss  stop.rule  stop.window  stop.max_epochs  stop.max_steps
  memory, speed  micro_batch_size  activation_checkpointing  compile  threads  trainer.precision
  sweeps         jobs  jobs_per_gpu  report  hydra/launcher=slurm (a cluster)
  searches       hydra.sweeper.smallest, .largest, .octaves, .give_up, .probes, .budget.runs, ...
  b* of one run  noise.probes  noise.branches
  where          study  output_dir  data_dir  repeat=<run directory>
  restart        checkpoint.every_seconds  checkpoint.keep

Your own models, data and experiments: --config-dir conf, with code in the current directory.
Re-running a command skips finished runs and resumes interrupted ones.
Figures and reports of finished runs: cbs-figures, cbs-report, cbs-tensorboard.
Documentation: README.md and docs/ in the project's repository."""


def help_text() -> str:
    choices = [_choices(group) for group in GROUPS if options(group)]
    return START + "\n".join(choices) + "\n" + KEYS


def _choices(group: str) -> str:
    listed = f"  {group:<15}{', '.join(options(group))}"
    return textwrap.fill(listed, WIDTH, subsequent_indent=17 * " ")
