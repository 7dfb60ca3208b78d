"""Pipelines over HTTP: they report in, others look at what they said (`pipeline_reports.py`)."""

from __future__ import annotations

from msgspec import Struct

from strandlog.server.http.api.pipeline_reports import (
    MAX_NAME_CHARACTERS,
    PipelineProgress,
    PipelineStatus,
)
from strandlog.server.http.problems import HttpError, bad_request
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState


class PipelineList(Struct):
    """Pipelines that reported recently, by name. Points are in the description of each."""

    pipelines: list[PipelineStatus]


async def report_progress(state: HttpState, request: ApiRequest[Nothing, PipelineProgress]) -> None:
    name = request.path["name"]
    if len(name) > MAX_NAME_CHARACTERS:
        raise bad_request(f"the name of a pipeline has at most {MAX_NAME_CHARACTERS} characters")
    state.pipelines.report(name, request.body)


async def list_pipelines(state: HttpState, request: ApiRequest[Nothing, None]) -> PipelineList:
    del request
    return PipelineList(state.pipelines.all())


async def describe_pipeline(state: HttpState, request: ApiRequest[Nothing, None]) -> PipelineStatus:
    found = state.pipelines.one(request.path["name"])
    if found is None:
        raise HttpError(
            404,
            "Pipeline not found",
            f"pipeline {request.path['name']!r} has not reported in the last 10 minutes",
        )
    return found
