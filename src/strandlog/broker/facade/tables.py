"""Requests about lake tables.

`Broker` inherits these methods. `wanted_tables`, `take_table_checks` and `table_synced` are not for
clients: the code that runs the table sync process (`server/table_process.py`) calls them.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.facade.topics import DESCRIBE_TOPIC, TopicRequests
from strandlog.broker.maintenance import RETENTION, Maintenance
from strandlog.broker.topics.lake_tables import LakeTables, TableReport, TableState, WantedTable
from strandlog.broker.topics.topic import Topic

TABLE_ID = "table.id"


class TableRequests(TopicRequests):
    """The lake table requests of a `Broker`."""

    _lake_tables: LakeTables
    _maintenance: Maintenance

    def table_state(self, context: RequestContext, topic: str) -> TableState | None:
        """Return the state of a topic's table, or None if the topic has no table."""
        self._access.require(context, DESCRIBE_TOPIC, topic)
        return self._lake_tables.state(topic)

    def wanted_tables(self) -> Mapping[str, WantedTable]:
        """Return the tables that must exist, by topic; the same object until they change."""
        return self._lake_tables.wanted()

    def take_table_checks(self) -> list[str]:
        """Return and clear the topics whose tables must be synced and reported on before retention
        can continue."""
        return self._lake_tables.take_checks()

    def table_synced(self, report: TableReport) -> None:
        """Process the report of a sync. The first successful report binds its table to the topic:
        from then on, retention trusts only reports about that table."""
        is_awaited = self._lake_tables.note(report)
        wanted = self._lake_tables.wanted().get(report.topic)
        if (
            wanted is not None
            and not wanted.table_id
            and wanted.topic_id == report.topic_id
            and not report.error
        ):
            changes = {TABLE_ID: report.table_id}
            self.alter_topic(RequestContext(OWNER), report.topic, changes).on_done(self._bound)
        if is_awaited:
            self._maintenance.schedule_soon(RETENTION)

    def _bound(self, result: Deferred[Topic]) -> None:
        if result.error is not None:
            self._runtime.report(f"cannot store the id of a lake table; retrying: {result.error}")
