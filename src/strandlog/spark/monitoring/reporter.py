"""Sends the progress of a pipeline to a broker in the background, for the broker's console.

    reporter = Reporter("flights", address_finder(None, "127.0.0.1:9092", {}))
    reporter.set_state("running", ui_url=…)
    reporter.add(report)                after each micro-batch
    reporter.end("failed", "why")       when the pipeline ends

A thread sends the latest state, at most once a second. None of these calls raises an error, and
only `end` waits for the network, briefly, so that the final state is delivered. Reports that could
not be sent are not queued; only the last report of each query is kept.

If a report cannot be sent, the thread logs one warning and then retries silently, with increasing
delays, as long as the pipeline runs. A restarted broker has lost its reports and may use another
port, so after an error the thread looks up the address again and sends the last report of every
query. If a broker has no HTTP listener, the thread exits.

A heartbeat keeps an idle pipeline listed; the broker drops pipelines that stop reporting.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from strandlog.client.http.address import HttpAddress
from strandlog.client.http.login import HttpLogin
from strandlog.config.limits.http import (
    HTTP_PIPELINE_ERROR_CHARACTERS,
    HTTP_PIPELINE_MAX_QUERIES,
    HTTP_PIPELINE_NAME_CHARACTERS,
    HTTP_PIPELINE_URL_CHARACTERS,
    HTTP_PIPELINE_WATERMARK_CHARACTERS,
)
from strandlog.errors import StrandlogError
from strandlog.spark.monitoring.report_address import FindAddress

if TYPE_CHECKING:
    from strandlog.spark.monitoring.progress import QueryReport

logger = logging.getLogger(__name__)

State = Literal["running", "scheduled", "stopped", "failed"]

INTERVAL_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0  # shorter than the default of http.idle.timeout.ms
LONGEST_PAUSE_SECONDS = 30.0
RESPONSE_SECONDS = 2.0
END_SECONDS = 2.0
MAX_RESPONSE_BYTES = 64 * 1024
_SEND_ERRORS = (OSError, HTTPException, StrandlogError, ValueError)


class Reporter:
    """Reports one pipeline to one broker."""

    def __init__(
        self,
        name: str,
        find: FindAddress | None,
        is_alive: Callable[[], bool] = lambda: True,
        login: HttpLogin | None = None,
    ) -> None:
        """`is_alive` is called before each report; if it returns False, the reporter reports the
        state "stopped" and ends."""
        self._name = name[:HTTP_PIPELINE_NAME_CHARACTERS]
        self._find = find
        self._is_alive = is_alive
        self._login = login or HttpLogin({})
        self._changed = threading.Condition()  # guards the attributes up to the next comment
        self._reports: dict[str, QueryReport] = {}
        self._unsent: set[str] = set()
        self._state: State = "running"
        self._error: str | None = None
        self._ui_url: str | None = None
        self._next_run_ms: int | None = None
        self._has_news = False
        self._is_over = find is None
        self._thread: threading.Thread | None = None
        # Used only by the thread:
        self._address: HttpAddress | None = None
        self._headers: dict[str, str] = {}
        self._connection: HTTPConnection | None = None
        self._has_warned = False

    # -- state and reports -----------------------------------------------------------------------

    def set_state(
        self,
        state: State,
        error: str | None = None,
        *,
        ui_url: str | None = None,
        next_run_ms: int | None = None,
    ) -> None:
        """Report a new state of the pipeline; set `next_run_ms` only with "scheduled"."""
        with self._changed:
            self._state, self._error, self._next_run_ms = state, error, next_run_ms
            self._ui_url = ui_url or self._ui_url
            self._has_news = True
            self._wake()

    def add(self, report: QueryReport) -> None:
        """Report a micro-batch of a query."""
        with self._changed:
            if self._is_over:
                return
            before = self._reports.pop(report.name, None)
            if len(self._reports) == HTTP_PIPELINE_MAX_QUERIES:
                # The broker keeps no more queries per pipeline; it also drops the oldest one.
                oldest = next(iter(self._reports))
                del self._reports[oldest]
                self._unsent.discard(oldest)
            if before is not None and report.name in self._unsent and not report.rows:
                # A batch without rows has no rate: keep the rate of the previous, unsent report.
                report = report._replace(
                    rows=before.rows,
                    rows_per_second=before.rows_per_second,
                    batch_ms=before.batch_ms,
                )
            if before is not None:  # late_rows becomes a total, because not every batch is sent
                report = report._replace(late_rows=before.late_rows + report.late_rows)
            self._reports[report.name] = report
            self._unsent.add(report.name)
            self._wake()

    def end(self, state: State, error: str | None = None) -> None:
        """Report the final state, waiting up to END_SECONDS for it to be sent."""
        with self._changed:
            if self._is_over:
                return
            self._ui_url = None  # Spark's UI shuts down with the pipeline
            self.set_state(state, error)
            self._is_over = True
            thread = self._thread
        if thread is not None:
            thread.join(END_SECONDS)

    def _wake(self) -> None:
        if self._thread is None and not self._is_over:
            self._thread = threading.Thread(
                target=self._work, name=f"strandlog-report-{self._name}", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        failures = 0
        while True:
            is_last = self._wait_for_news()
            was_connected = self._connection is not None
            try:
                if not self._send():
                    break  # the broker has no HTTP listener
                failures = 0
            except _SEND_ERRORS as error:
                self._disconnect()
                with self._changed:
                    self._has_news = True  # the state was not sent
                if was_connected:
                    continue  # the server may have closed an old connection; try a new one
                if is_last:
                    break
                self._warn(error)
                failures += 1
            if is_last:
                break
            self._pause(min(INTERVAL_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS))
        self._disconnect()
        with self._changed:
            self._is_over = True
            self._reports.clear()

    def _wait_for_news(self) -> bool:
        """Wait until a report or heartbeat is due; return whether it is the last one."""
        with self._changed:
            timeout = HEARTBEAT_SECONDS if self._state in ("running", "scheduled") else None
            self._changed.wait_for(
                lambda: self._is_over or self._has_news or bool(self._unsent), timeout
            )
            if not self._is_over and not self._is_alive():
                self._state, self._ui_url, self._is_over = "stopped", None, True
            return self._is_over

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, seconds)

    def _document(self, *, is_whole: bool) -> dict[str, Any]:
        """Return the document to send, and mark its contents as sent."""
        with self._changed:
            names = [name for name in self._reports if is_whole or name in self._unsent]
            self._unsent.clear()
            self._has_news = False
            return {
                "queries": [_query(self._reports[name]) for name in names],
                "state": self._state,
                "error": None
                if self._error is None
                else self._error[:HTTP_PIPELINE_ERROR_CHARACTERS],
                "ui_url": _url(self._ui_url),
                # Included only if set: earlier brokers reject fields that they do not know.
                **({} if self._next_run_ms is None else {"next_run_ms": self._next_run_ms}),
            }

    # -- HTTP ------------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Send a report; return False if the broker has no HTTP listener."""
        is_new = self._connection is None
        if self._connection is None:
            assert self._find is not None, "without an address, is_over is set and no thread runs"
            self._address = self._find()
            if self._address is None:
                return False
            self._connection, login = self._login.connect(self._address, RESPONSE_SECONDS)
            self._headers = {"Content-Type": "application/json", **login}
        assert self._address is not None
        # On a new connection, send everything, because the broker may have been restarted.
        body = json.dumps(self._document(is_whole=is_new), allow_nan=False).encode()
        path = f"{self._address.path}/api/v1/pipelines/{quote(self._name, safe='')}/progress"
        self._connection.request("POST", path, body, self._headers)
        response = self._connection.getresponse()
        body_read = response.read(MAX_RESPONSE_BYTES)
        if not 200 <= response.status < 300:
            raise HTTPException(f"HTTP {response.status}: {_detail(body_read)}")
        return True

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "cannot report the progress of %s to %s: %s. The query continues; reporting will be "
            "retried.",
            self._name,
            self._address or "its broker",
            str(error) or type(error).__name__,
        )


def _query(report: QueryReport) -> dict[str, Any]:
    """Convert a report to the format of the broker's HTTP API."""
    rate, watermark = report.rows_per_second, report.watermark
    return {
        **report._asdict(),
        "name": report.name[:HTTP_PIPELINE_NAME_CHARACTERS],
        # Spark divides by the duration of a batch, which can be 0.
        "rows_per_second": rate if math.isfinite(rate) and rate > 0 else 0.0,
        "watermark": None if watermark is None else watermark[:HTTP_PIPELINE_WATERMARK_CHARACTERS],
    }


def _url(text: str | None) -> str | None:
    is_fit = (
        text is not None and text.startswith("http") and len(text) <= HTTP_PIPELINE_URL_CHARACTERS
    )
    return text if is_fit else None


def _detail(body: bytes) -> str:
    """Return the truncated detail of a problem response, or "no details" if it has none."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["detail"])[:HTTP_PIPELINE_NAME_CHARACTERS]
    return "no details"
