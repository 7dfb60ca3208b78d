"""The cache of compiled schemas that the responses of the HTTP API share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.support.log_builders import uuids

from strandlog.broker.broker import Broker
from strandlog.formats.registered_schema import AVRO, RegisteredSchema
from strandlog.formats.registry.codec import codec_of
from strandlog.server import value_schemas
from strandlog.server.value_schemas import ValueSchemas
from strandlog.testing import FakeClock, SimulatedFiles


def test_a_schema_that_every_response_needs_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was evicted as soon as 256 other schemas had been compiled after it."""
    compiled: Counter[int] = Counter()
    compile_schema = codec_of

    def counted(schema: RegisteredSchema, *rest: Any) -> object:
        compiled[schema.id] += 1
        return compile_schema(schema, *rest)

    monkeypatch.setattr(value_schemas, "codec_of", counted)
    monkeypatch.setattr(value_schemas, "CACHED_CODECS", 4)
    schemas = ValueSchemas(Broker("data", SimulatedFiles(), FakeClock(), uuids()))
    hot, *others = [RegisteredSchema(number, AVRO, '"int"') for number in range(20)]
    for other in others:
        schemas.codec(hot)
        schemas.codec(other)
    assert compiled[hot.id] == 1
    assert len(schemas._codecs) == 4
