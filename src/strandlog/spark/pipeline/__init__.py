"""Pipelines: TOML files that describe sources, views and sinks, their runner and their tests.

run("flights.toml", on_progress=print)
"""

from strandlog.spark.pipeline.cases.run import check_case, load_cases, run_cases
from strandlog.spark.pipeline.file import load
from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.runner import RunningPipeline, run, start, validate

__all__ = [
    "Pipeline",
    "RunningPipeline",
    "check_case",
    "load",
    "load_cases",
    "run",
    "run_cases",
    "start",
    "validate",
]
