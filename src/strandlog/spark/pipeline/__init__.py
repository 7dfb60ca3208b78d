"""Pipelines: TOML files that describe sources, views and sinks, and their runner.

run("flights.toml", on_progress=print)
"""

from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.runner import RunningPipeline, load, run, start

__all__ = ["Pipeline", "RunningPipeline", "load", "run", "start"]
