"""A run's result as a row of TensorBoard's HParams table."""

import time
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

from cbs_lightning.console import visible
from cbs_lightning.results.events import EventWriter, replace_events
from cbs_lightning.results.result import Result, Status

SUFFIX = ".hparams"
SHOWN = ("variant", "batch_size", "seed", "status", "threshold")  # as many as the page shows
HIDDEN = ("rule", "optimizer", "lr", "settings", "model", "data")  # until they are asked for
NUMBERS = ("batch_size", "seed", "threshold", "lr")
# The page shows five of these, too.
METRICS = ("steps", "sfo", "seconds", "accuracy", "loss", "test_accuracy", "samples", "steps_run")


def write_hparams(directory: Path, result: Result) -> None:
    """Replace the run's row. Without a reached threshold it has no steps, sfo and samples."""
    content = BytesIO()
    events = EventWriter(content)
    events.summary(_columns())
    events.summary(_row(result))
    metrics = {_tag(name): getattr(result, name) for name in METRICS}
    events.scalars({tag: value for tag, value in metrics.items() if value is not None}, 0)
    replace_events(directory, SUFFIX, content.getvalue())


def _columns() -> Summary:
    """The columns, the same for every run, because TensorBoard uses those of one run for all."""
    hparams = [
        api_pb2.HParamInfo(
            name=_key(name),
            display_name=name,
            type=api_pb2.DATA_TYPE_FLOAT64 if name in NUMBERS else api_pb2.DATA_TYPE_STRING,
            differs=name in SHOWN,
        )
        for name in (*SHOWN, *HIDDEN)
    ]
    hparams[SHOWN.index("status")].domain_discrete.extend(Status)  # boxes to choose rows by
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=_tag(name)), display_name=name)
        for name in METRICS
    ]
    experiment = api_pb2.Experiment(hparam_infos=hparams, metric_infos=metrics)
    return _summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))


def _row(result: Result) -> Summary:
    """A row without a group name, which would merge runs of several studies."""
    row = SessionStartInfo(start_time_secs=time.time() - result.seconds)
    for name in (*SHOWN, *HIDDEN):
        if name in NUMBERS and getattr(result, name) is None:
            continue  # a module's own optimizer may have no learning rate
        if name in NUMBERS:
            row.hparams[_key(name)].number_value = getattr(result, name)
        else:
            row.hparams[_key(name)].string_value = _text(result, name)
    return _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=row))


def _summary(tag: str, content: HParamsPluginData) -> Summary:
    described = metadata.create_summary_metadata(content)
    value = Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def _key(name: str) -> str:
    """The name by which TensorBoard sorts columns; it shows their display names."""
    return f"{(*SHOWN, *HIDDEN).index(name):02}_{name}"


def _tag(metric: str) -> str:
    return f"result/{metric}"


def _text(result: Result, name: str) -> str:
    if name == "settings":
        settings = result.hyperparameters.items()
        return visible(" ".join(f"{key}={value}" for key, value in settings))
    return visible(str(getattr(result, name)))
