"""Topic and broker settings of a cluster: DescribeConfigs and IncrementalAlterConfigs.

Kafka transfers values as strings. Values of topic settings that strandlog knows are parsed, so that
`1d` and `512MiB` work with any cluster and values have the same types as in an embedded log.
Unknown or invalid settings are passed on as text, so that the broker can validate them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from strandlog.client.remote.errors import check_names, confluent, translated
from strandlog.config.setting import Value
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import SettingError, StrandlogError

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

SOURCES = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic cluster",
    4: "static broker",
    5: "default",
}
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5
TOPIC_AUTHORIZATION_FAILED = 29


class RemoteSetting(NamedTuple):
    """A setting as returned by a broker. The value of a sensitive setting is None."""

    name: str
    value: str | None
    source_id: int
    is_read_only: bool
    is_sensitive: bool

    @property
    def source(self) -> str:
        return SOURCES.get(self.source_id, f"source {self.source_id}")

    @property
    def is_changed(self) -> bool:
        """Whether the setting is set on the topic itself."""
        return self.source_id == SOURCE_TOPIC

    def parsed(self) -> Value:
        text = self.value or ""
        if self.name not in TOPIC_SETTINGS:
            return text
        try:
            return TOPIC_SETTINGS[self.name].parse(text)
        except SettingError:
            return text  # Kafka may allow values that strandlog does not


def kafka_text(name: str, value: object) -> str:
    """Return a value as a string in Kafka's format, without units."""
    if name in TOPIC_SETTINGS:
        try:
            setting = TOPIC_SETTINGS[name]
            return setting.format(setting.parse(value))
        except SettingError:
            pass
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class RemoteSettings:
    """Reads and changes the settings of a cluster."""

    def __init__(self, log: RemoteLog) -> None:
        self._log = log

    def of_topics(
        self, names: Iterable[str], *, skip_refused: bool = False
    ) -> dict[str, list[RemoteSetting]]:
        """Return all settings of each topic, using one request.

        With `skip_refused`, the list is empty for a topic whose settings the user may not read.
        """
        kind = confluent().admin.ConfigResource.Type.TOPIC
        found = {}
        for name, future in self._asked(kind, list(names)).items():
            try:
                found[name] = _rows(self._log.result(future, topic=name))
            except StrandlogError as error:
                code = getattr(error, "code", error.kafka_code)
                if not skip_refused or code != TOPIC_AUTHORIZATION_FAILED:
                    raise
                found[name] = []
        return found

    def of_broker(self, node_id: int | None = None) -> list[RemoteSetting]:
        if node_id is None:
            asked = self._log.admin.describe_cluster(**self._log.request_options)
            node_id = min(node.id for node in self._log.result(asked).nodes)
        kind = confluent().admin.ConfigResource.Type.BROKER
        return _rows(self._log.result(self._asked(kind, [str(node_id)])[str(node_id)]))

    def _asked(self, kind: Any, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        check_names(names)
        resources = [confluent().admin.ConfigResource(kind, name) for name in names]
        with translated():
            futures = self._log.admin.describe_configs(resources, **self._log.request_options)
        return {resource.name: future for resource, future in futures.items()}

    def alter_topic(self, name: str, config: Mapping[str, object | None]) -> None:
        """Change settings; None resets a setting to its default."""
        admin = confluent().admin
        entries = [
            admin.ConfigEntry(
                key,
                None if value is None else kafka_text(key, value),
                incremental_operation=admin.AlterConfigOpType.DELETE
                if value is None
                else admin.AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        resource = admin.ConfigResource(
            admin.ConfigResource.Type.TOPIC, name, incremental_configs=entries
        )
        with translated(topic=name):
            futures = self._log.admin.incremental_alter_configs(
                [resource], **self._log.request_options
            )
        self._log.result(futures[resource], topic=name)


def _rows(entries: Mapping[str, Any]) -> list[RemoteSetting]:
    return [
        RemoteSetting(entry.name, entry.value, entry.source, entry.is_read_only, entry.is_sensitive)
        for entry in sorted(entries.values(), key=lambda entry: str(entry.name))
    ]
