"""Pipelines over HTTP: they report in, others look at what they said (`pipeline_reports.py`)."""

from __future__ import annotations

from msgspec import Struct

from strandlog.server.http.api.pipeline_reports import (
    MOST_NAME_CHARACTERS,
    PipelineProgress,
    PipelineShown,
)
from strandlog.server.http.problems import HttpError, bad_request
from strandlog.server.http.routing import Call, Nothing
from strandlog.server.http.state import Context


class PipelineList(Struct):
    """Pipelines that reported lately, by name. Points are in the description of each."""

    pipelines: list[PipelineShown]


async def report_progress(context: Context, call: Call[Nothing, PipelineProgress]) -> None:
    name = call.path["name"]
    if len(name) > MOST_NAME_CHARACTERS:
        raise bad_request(f"the name of a pipeline has at most {MOST_NAME_CHARACTERS} characters")
    context.pipelines.report(name, call.body)


async def list_pipelines(context: Context, call: Call[Nothing, None]) -> PipelineList:
    del call
    return PipelineList(context.pipelines.all())


async def describe_pipeline(context: Context, call: Call[Nothing, None]) -> PipelineShown:
    found = context.pipelines.one(call.path["name"])
    if found is None:
        raise HttpError(
            404, "Pipeline not found", f"no pipeline {call.path['name']!r} reported lately"
        )
    return found
