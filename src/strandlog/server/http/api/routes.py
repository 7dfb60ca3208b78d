"""The JSON API: every call, once. Routing and the OpenAPI document are made of this table."""

from __future__ import annotations

from strandlog.server.http.api import cluster, groups, pipelines, topics
from strandlog.server.http.api.pipeline_reports import PipelineProgress, PipelineShown
from strandlog.server.http.body_limit import MOST_BODY_BYTES
from strandlog.server.http.records import produce
from strandlog.server.http.records import read as browse
from strandlog.server.http.routing import ApiRoute

PREFIX = "/api/v1"

# fmt: off
ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/topics", topics.list_topics, "Topics with their sizes and rates",
             topics.TopicList, query=topics.TopicsQuery, is_large=True),
    ApiRoute("POST", "/topics", topics.create_topic, "Make a topic",
             topics.TopicDescription, body=topics.NewTopic, status=201, is_large=True),
    ApiRoute("GET", "/topics/{topic}", topics.describe_topic, "A topic with all that is set",
             topics.TopicDescription, is_large=True),
    ApiRoute("PATCH", "/topics/{topic}", topics.alter_topic, "Change settings of a topic",
             topics.TopicDescription, body=topics.TopicChanges, is_large=True),
    ApiRoute("DELETE", "/topics/{topic}", topics.delete_topic, "Delete a topic"),
    ApiRoute("POST", "/topics/{topic}/partitions", topics.add_partitions, "Let a topic grow",
             topics.TopicDescription, body=topics.NewPartitions, is_large=True),
    ApiRoute("GET", "/topics/{topic}/records", browse.browse, "Look at records, and for them",
             browse.RecordsPage, query=browse.RecordsQuery, is_large=True),
    ApiRoute("POST", "/topics/{topic}/records", produce.produce, "Append records",
             produce.RecordPlaces, body=produce.RecordsToSend, most_body_bytes=MOST_BODY_BYTES),
    ApiRoute("GET", "/groups", groups.list_groups, "Groups with their lag",
             groups.GroupList, is_large=True),
    ApiRoute("GET", "/groups/{group}", groups.describe_group, "A group, its members, its lag",
             groups.GroupShown, is_large=True),
    ApiRoute("DELETE", "/groups/{group}", groups.delete_group, "Forget a group without members"),
    ApiRoute("POST", "/groups/{group}/reset", groups.reset_offsets, "Move a group, or try to",
             groups.OffsetChanges, body=groups.OffsetReset, is_large=True),
    ApiRoute("GET", "/cluster", cluster.cluster, "The cluster at a glance", cluster.ClusterFacts),
    ApiRoute("GET", "/broker", cluster.describe_broker, "Requests, stalls, figures and problems",
             cluster.BrokerFacts),
    ApiRoute("GET", "/broker/settings", cluster.broker_settings, "Every setting and its origin",
             cluster.SettingList),
    ApiRoute("GET", "/pipelines", pipelines.list_pipelines, "Pipelines that reported lately",
             pipelines.PipelineList),
    ApiRoute("GET", "/pipelines/{name}", pipelines.describe_pipeline, "A pipeline and its past",
             PipelineShown),
    ApiRoute("POST", "/pipelines/{name}/progress", pipelines.report_progress, "Report progress",
             body=PipelineProgress),
)
# fmt: on
