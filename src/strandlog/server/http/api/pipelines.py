"""Accepts progress reports from Spark pipelines and returns the recent ones."""

from __future__ import annotations

from msgspec import Struct

from strandlog.config.limits.http import HTTP_PIPELINE_NAME_CHARACTERS
from strandlog.server.http.pipeline_reports import PipelineProgress, PipelineStatus
from strandlog.server.http.problems import HttpError, bad_request
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState


class PipelineList(Struct):
    """Pipelines that reported recently, ordered by name, without their data points."""

    pipelines: list[PipelineStatus]


async def report_progress(state: HttpState, request: ApiRequest[Nothing, PipelineProgress]) -> None:
    name = request.path["name"]
    if len(name) > HTTP_PIPELINE_NAME_CHARACTERS:
        raise bad_request(
            f"a pipeline name may have at most {HTTP_PIPELINE_NAME_CHARACTERS} characters"
        )
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
