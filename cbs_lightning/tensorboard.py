"""A run's result, also as its row in TensorBoard's HParams table."""

from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from cbs_lightning.events import EventWriter, event_path, event_paths
from cbs_lightning.results import Result, write_result
from cbs_lightning.storage import write_atomically

SUFFIX = ".hparams"
# TensorBoard shows the first five; `differs` puts them there.
SHOWN = ("batch_size", "seed", "status", "threshold", "variant")
HIDDEN = ("data", "lr", "model", "optimizer", "rule", "settings")
METRICS = ("steps", "sfo", "samples", "accuracy", "loss", "test_accuracy", "seconds", "steps_run")


def publish(directory: Path, result: Result) -> None:
    """Make this the run's result, which is written last: a run with a result is whole."""
    write_hparams(directory, result)
    write_result(directory, result)


def write_hparams(directory: Path, result: Result) -> None:
    """Replace the run's row. A run that did not reach its threshold has no steps, sfo, samples."""
    values = {name: _value(result, name) for name in (*SHOWN, *HIDDEN)}
    metrics = {name: getattr(result, name) for name in METRICS}
    content = BytesIO()
    events = EventWriter(content)
    events.summary(_columns(values))
    events.summary(hparams_pb(values, trial_id=directory.name))
    for name, value in metrics.items():
        if value is not None:
            events.scalar(_tag(name), value, 0)
    older = event_paths(directory, SUFFIX)
    write_atomically(event_path(directory, SUFFIX), content.getvalue())
    for path in older:  # TensorBoard keeps the first row that it reads of a run
        path.unlink()


def _columns(values: dict[str, str | float]) -> Summary:
    """The same for every run, since TensorBoard takes one run's for all."""
    hparams = [
        api_pb2.HParamInfo(
            name=name,
            type=api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64,
            differs=name in SHOWN,
        )
        for name, value in values.items()
    ]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=_tag(name)), display_name=name)
        for name in METRICS
    ]
    experiment = api_pb2.Experiment(hparam_infos=hparams, metric_infos=metrics)
    content = plugin_data_pb2.HParamsPluginData(experiment=experiment)
    column_summary = Summary()
    column_summary.value.add(
        tag=metadata.EXPERIMENT_TAG,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return column_summary


def _tag(metric: str) -> str:
    return f"result/{metric}"


def _value(result: Result, name: str) -> str | float:
    if name == "settings":
        return " ".join(f"{key}={value}" for key, value in result.hyperparameters.items())
    value = getattr(result, name)
    return float(value) if isinstance(value, int | float) else str(value)
