"""The table of Kafka's APIs against kio's schemas."""

from __future__ import annotations

from typing import Any

import pytest
from kio.index import UnknownEntity, load_request_schema

from strandlog.protocol.kafka.api import API_BY_KEY, Api


@pytest.mark.parametrize("api", API_BY_KEY.values(), ids=lambda api: api.name)
def test_names_and_flexible_versions_are_those_of_kio(api: Api) -> None:
    checked = 0
    for version in range(30):
        try:
            schema: Any = load_request_schema(api.key, version)
        except UnknownEntity:
            continue
        assert schema.__name__ == f"{api.name}Request"
        assert schema.__flexible__ == api.is_flexible(version)
        checked += 1
    assert checked
