"""The route table of the JSON API. Routing and the OpenAPI document derive from it.

A pipeline has the name of its consumer group, and requires permissions on that group; the list of
all pipelines requires DESCRIBE on the cluster.
"""

from __future__ import annotations

from strandlog.broker.access.permission import (
    CLUSTER,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
)
from strandlog.server.http import pipeline_reports
from strandlog.server.http.api import cluster, groups, history, pipelines, session, topics
from strandlog.server.http.records import produce, read
from strandlog.server.http.routing import ApiRoute

PREFIX = "/api/v1"

# fmt: off
ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("GET", "/topics", topics.list_topics,
             "List topics with their sizes and rates", topics.TopicList, query=topics.TopicsQuery,
             is_large=True),
    ApiRoute("POST", "/topics", topics.create_topic,
             "Create a topic", topics.TopicDescription, body=topics.NewTopic, status=201,
             is_large=True),
    ApiRoute("GET", "/topics/{topic}", topics.describe_topic,
             "Describe a topic and its settings", topics.TopicDescription, is_large=True),
    ApiRoute("PATCH", "/topics/{topic}", topics.alter_topic,
             "Alter topic settings", topics.TopicDescription, body=topics.TopicChanges,
             is_large=True),
    ApiRoute("DELETE", "/topics/{topic}", topics.delete_topic, "Delete a topic"),
    ApiRoute("POST", "/topics/{topic}/partitions", topics.add_partitions,
             "Add partitions", topics.TopicDescription, body=topics.NewPartitions, is_large=True),
    ApiRoute("GET", "/topics/{topic}/history", history.topic_history,
             "Records per second of a topic in the last five minutes", history.TopicHistory,
             needs=DESCRIBE.on(TOPIC)),
    ApiRoute("GET", "/topics/{topic}/records", read.read_records,
             "Read or search records", read.RecordsPage, query=read.RecordsQuery, is_large=True),
    ApiRoute("POST", "/topics/{topic}/records", produce.produce,
             "Produce records", produce.ProduceResponse, body=produce.ProduceRequest,
             carries_records=True),
    ApiRoute("GET", "/groups", groups.list_groups,
             "List groups with their lag", groups.GroupList, query=groups.GroupsQuery,
             is_large=True),
    ApiRoute("GET", "/groups/{group}", groups.describe_group,
             "Describe a group: members, offsets and lag", groups.GroupDescription, is_large=True),
    ApiRoute("DELETE", "/groups/{group}", groups.delete_group, "Delete an empty group"),
    ApiRoute("POST", "/groups/{group}/reset", groups.reset_offsets,
             "Reset a group's offsets (dry run by default)", groups.OffsetResetResult,
             body=groups.OffsetReset, is_large=True),
    ApiRoute("GET", "/cluster", cluster.cluster, "Cluster summary", cluster.Cluster,
             needs=DESCRIBE.on(CLUSTER)),
    ApiRoute("GET", "/broker", cluster.describe_broker,
             "Broker status: latencies, counters and problems", cluster.BrokerStatus,
             needs=DESCRIBE.on(CLUSTER)),
    ApiRoute("GET", "/history", history.broker_history,
             "Rates and lag in the last five minutes", history.BrokerHistory,
             needs=DESCRIBE.on(CLUSTER)),
    ApiRoute("GET", "/broker/settings", cluster.broker_settings,
             "List the settings and their origin", cluster.SettingList,
             needs=DESCRIBE_CONFIGS.on(CLUSTER)),
    ApiRoute("GET", "/pipelines", pipelines.list_pipelines,
             "List the pipelines that reported recently", pipelines.PipelineList,
             needs=DESCRIBE.on(CLUSTER)),
    ApiRoute("GET", "/pipelines/{name}", pipelines.describe_pipeline,
             "Describe a pipeline and its recent progress", pipeline_reports.PipelineStatus,
             needs=DESCRIBE.on(GROUP)),
    ApiRoute("POST", "/pipelines/{name}/progress", pipelines.report_progress,
             "Report progress", body=pipeline_reports.PipelineProgress, needs=READ.on(GROUP)),
    ApiRoute("GET", "/session", session.describe_session,
             "Describe the client and what it may do", session.SessionStatus,
             is_metered=False),
    ApiRoute("POST", "/session", session.log_in,
             "Sign in with user and password; sets a session cookie", session.SessionStatus,
             body=session.Login, is_metered=False),
    ApiRoute("DELETE", "/session", session.log_out, "Sign out", is_metered=False),
)
# fmt: on
