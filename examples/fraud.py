"""Alerts for cards that pay too often: state per key, in Python, with transformWithState.

    strandlog topic create payments -b HOST:PORT
    python -m examples.fraud HOST:PORT [--once]

    topic payments   {"card": "c1", "at": "2026-01-01T10:00:00Z", "amount": 5.0}
        │ watermark: 10 minutes
        ▼
    PaymentCounter   per card: the times of its payments within the last 10 minutes
        │            a timer forgets a card that has not paid for that long
        ▼
    topic alerts     {"card": "c1", "payments": 3, "since": "…", "until": "…"}, exactly once

SQL windows have fixed boundaries, so payments shortly before and after a boundary are counted
separately. This operator gets each payment together with the state of its card, so its window ends
with the payment.

Requires the packages pyarrow and protobuf (extra `spark`) and Spark's RocksDB state store.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from strandlog.spark import session

WINDOW_MS = 10 * 60 * 1000
LIMIT = 3  # payments of one card within the window
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
PAYMENTS = "card STRING, at TIMESTAMP, amount DOUBLE"
ALERTS = "card STRING, payments INT, since TIMESTAMP, until TIMESTAMP"


class PaymentCounter(StatefulProcessor):  # type: ignore[misc]
    """Counts the payments of one card within the window; Spark keeps one state per card."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._times = handle.getListState("times", "at BIGINT")

    def handleInputRows(  # noqa: N802 - Spark's names, like the next ones
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        del timerValues
        times = [at for (at,) in self._times.get()]
        for payment in sorted(rows, key=lambda row: row["at"]):
            now_ms = int(payment["at"].timestamp() * 1000)
            times = [at for at in times if at > now_ms - WINDOW_MS] + [now_ms]
            if len(times) >= LIMIT:
                since, until = _time(min(times)), _time(max(times))
                yield Row(card=key[0], payments=len(times), since=since, until=until)
        self._times.put([(at,) for at in times])
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(max(times) + WINDOW_MS)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """Forget a card, because later payments cannot be in one window with the known ones."""
        del key, timerValues, expiredTimerInfo
        self._times.clear()
        return iter(())

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def alerts(payments: DataFrame) -> DataFrame:
    """Return an alert for each payment with which a card reaches or exceeds the limit."""
    return (
        payments.withWatermark("at", "10 minutes")
        .groupBy("card")
        .transformWithState(PaymentCounter(), ALERTS, outputMode="Append", timeMode="EventTime")
    )


def start(spark: SparkSession, address: str, checkpoint: str, *, once: bool = False) -> Any:
    """Start the query and return it."""
    payments = (
        spark.readStream.format("strandlog")
        .schema(PAYMENTS)
        .options(**{"bootstrap.servers": address, "subscribe": "payments"})
        .options(valueFormat="json", startingOffsets="earliest", groupId="fraud")
        .load()
    )
    writer = (
        alerts(payments)
        .selectExpr("card AS key", "to_json(struct(*)) AS value")
        .writeStream.format("strandlog")
        .options(**{"bootstrap.servers": address, "topic": "alerts"})
        .option("checkpointLocation", checkpoint)
        .queryName("fraud")
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Alerts for cards that pay too often.")
    parser.add_argument("address", metavar="HOST:PORT", help="the broker")
    parser.add_argument("--checkpoint", default="./checkpoints/fraud")
    parser.add_argument("--once", action="store_true", help="process the available data, then stop")
    options = parser.parse_args()
    spark = session(conf=STATE_STORE, app_name="fraud")
    start(spark, options.address, options.checkpoint, once=options.once).awaitTermination()


if __name__ == "__main__":
    main()
