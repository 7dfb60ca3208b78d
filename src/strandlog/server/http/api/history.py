"""The rates and the lag of the last five minutes, for charts."""

from __future__ import annotations

from msgspec import Struct

from strandlog.server.http.metrics.history import LagPoint, RatesPoint, TopicPoint
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState


class GroupHistory(Struct):
    """The lag of a group, oldest first."""

    group: str
    points: list[LagPoint]


class BrokerHistory(Struct):
    """The rates of the broker and the lag of the groups with the highest lag, oldest first."""

    rates: list[RatesPoint]
    lag: list[GroupHistory]


class TopicHistory(Struct):
    """The records per second of a topic, oldest first."""

    points: list[TopicPoint]


async def broker_history(state: HttpState, request: ApiRequest[Nothing, None]) -> BrokerHistory:
    del request
    lag = [GroupHistory(group, points) for group, points in sorted(state.history.lag().items())]
    return BrokerHistory(state.history.rates(), lag)


async def topic_history(state: HttpState, request: ApiRequest[Nothing, None]) -> TopicHistory:
    name = request.path["topic"]
    state.broker.topic(request.context, name)  # raises if it does not exist
    return TopicHistory(state.history.topic(name))
