"""A real Ray on this machine, and runs on whatever engine."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import planted
from stickytoken.detection import Run, detect
from stickytoken.encoders import Encoder

ENGINES = ("local", "ray")


@contextmanager
def local_ray(cpus: int = 2) -> Iterator[None]:
    """A Ray with so many cores, whatever the machine has, as a user would start it."""
    import ray

    # On a busy machine, workers of the default niceness of 15 would hardly run.
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"})
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says of its own future
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=100 * 2**20,
        )
    node = ray._private.worker._global_node
    started = [info.process for processes in node.all_processes.values() for info in processes]
    try:
        yield
    finally:
        ray.shutdown()
        # Older versions of Ray kill what does not stop within a second, and do not wait for its end.
        for process in started:
            process.wait()


class InterruptionError(Exception):
    """Raised by a progress callback."""


def interrupted_after(stage: str, done: int):
    def callback(step):
        if step.stage == stage and step.computed >= done:
            raise InterruptionError

    return callback


def detect_std(encoder: Encoder, out: Path, **options: object) -> Run:
    given = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": range(30, 90)}
    return detect(encoder, out=out, **given | options)
