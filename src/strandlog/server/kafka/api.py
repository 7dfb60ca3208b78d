"""Declares a Kafka API next to its handler: versions, permissions, summary and notes.

    @kafka_api(
        api.PRODUCE,
        versions=(3, 13),
        requires=[WRITE.on(TOPIC), WRITE.on(TRANSACTIONAL_ID)],
        summary="Appends record batches.",
    )
    def produce(...): ...

Dispatch, the version check, ApiVersions, the warm-up of the codecs, the fuzz tests and
docs/reference/kafka-apis.md are derived from these declarations. `KAFKA_APIS` is complete once
`server.kafka.handlers` is imported.

`requires` lists the permissions that Kafka's authorizer checks. A request needs every entry that
applies to it; for an entry that is a tuple, any one of its permissions is enough. The broker checks
the permissions (`broker/facade`); here they document the API, and tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from strandlog.broker.access.permission import Requirement
from strandlog.protocol.kafka.api import Api
from strandlog.protocol.kafka.decoder import request_reader
from strandlog.protocol.kafka.encoder import response_encoder

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class KafkaApi:
    """One API with its declaration and handler."""

    api: Api
    versions: range
    advertised_from: int
    requires: tuple[Requirement, ...]
    summary: str
    notes: str
    handler: Callable[..., Any]

    @property
    def key(self) -> int:
        return self.api.key

    @property
    def name(self) -> str:
        return self.api.name

    @property
    def last_version(self) -> int:
        return self.versions[-1]

    def advertised(self) -> dict[str, int]:
        """Return the entry for an ApiVersions response."""
        return {
            "api_key": self.key,
            "min_version": self.advertised_from,
            "max_version": self.last_version,
        }


NODE_ID = 0  # the id of the only broker
LEADER_EPOCH = 0  # the only epoch: the leader of a partition never changes

KAFKA_APIS: dict[int, KafkaApi] = {}
SUPPORTED_VERSIONS: dict[int, range] = {}  # versions by API key, for parsing request headers


def kafka_api(
    api: Api,
    *,
    versions: tuple[int, int],
    requires: Sequence[Requirement],
    summary: str,
    notes: str = "",
    advertised_from: int | None = None,
) -> Callable[[Handler], Handler]:
    """Declare the decorated function as the handler of an API; `versions` is inclusive."""
    first, last = versions

    def declare(handler: Handler) -> Handler:
        assert api.key not in KAFKA_APIS, f"{api.name} is declared twice"
        supported = range(first, last + 1)
        advertised = first if advertised_from is None else advertised_from
        KAFKA_APIS[api.key] = KafkaApi(
            api, supported, advertised, tuple(requires), summary, notes, handler
        )
        SUPPORTED_VERSIONS[api.key] = supported
        return handler

    return declare


def declared_apis() -> list[KafkaApi]:
    """Return all declared APIs, sorted by key."""
    return [KAFKA_APIS[key] for key in sorted(KAFKA_APIS)]


def warm_up() -> None:
    """Load the schemas and build the codecs of the newest versions; thread-safe."""
    for each in declared_apis():
        request_reader(each.key, each.last_version)
        response_encoder(each.key, each.last_version)
