"""Tells a broker how a pipeline is doing, for whoever looks at the broker's console.

    reporter = Reporter("flights", address_finder(None, "127.0.0.1:9092", {}))
    reporter.say("running", ui_url=…)
    reporter.tell(report)               after each micro-batch
    reporter.end("failed", "why")       the last word

None of these waits for the network or raises anything: a thread sends, at most once a second, what
is newest by then. Only `end` waits, for a moment, so that the last word is heard. What could not be
sent is not kept: of each query there is one report, the last.

A broker that does not answer is told of in one warning. Then it is tried again, ever less often and
without a word, for as long as the pipeline runs. One that comes back may have forgotten everything,
or have another port: so its address is asked for again, and it is told the last of every query. A
broker that has no HTTP door is not asked again.

While nothing happens a beat says that the pipeline is there: a broker forgets who is silent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from strandlog.errors import StrandlogError
from strandlog.spark.monitoring.report_address import FindAddress, ReportAddress

if TYPE_CHECKING:
    from strandlog.spark.monitoring.progress import QueryReport

logger = logging.getLogger(__name__)

State = Literal["running", "stopped", "failed"]

INTERVAL_SECONDS = 1.0
BEAT_SECONDS = 10.0  # a server keeps a connection open for longer
LONGEST_PAUSE_SECONDS = 30.0
PATIENCE_SECONDS = 2.0  # for one answer
END_SECONDS = 2.0
MOST_ANSWER_BYTES = 64 * 1024
# What a broker takes: server/http/api/pipelines.py.
MAX_QUERIES = 32
MAX_NAME_CHARACTERS = 200
MOST_ERROR_CHARACTERS = 2000
MOST_WATERMARK_CHARACTERS = 100
MOST_URL_CHARACTERS = 500
_TROUBLE = (OSError, HTTPException, StrandlogError, ValueError)


class Reporter:
    """One pipeline, as a broker hears of it."""

    def __init__(
        self,
        name: str,
        find: FindAddress | None,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_alive` is asked at each beat: a pipeline that is no more says that it has stopped."""
        self._name = name[:MAX_NAME_CHARACTERS]
        self._find = find
        self._is_alive = is_alive
        self._changed = threading.Condition()  # guards what follows, up to the thread
        self._reports: dict[str, QueryReport] = {}
        self._untold: set[str] = set()
        self._state: State = "running"
        self._error: str | None = None
        self._ui_url: str | None = None
        self._has_news = False
        self._is_over = find is None
        self._thread: threading.Thread | None = None
        # Of the thread alone:
        self._address: ReportAddress | None = None
        self._connection: HTTPConnection | None = None
        self._has_warned = False

    # -- what is to be told ----------------------------------------------------------------------

    def say(self, state: State, error: str | None = None, *, ui_url: str | None = None) -> None:
        """The pipeline is in this state now."""
        with self._changed:
            self._state, self._error = state, error
            self._ui_url = ui_url or self._ui_url
            self._has_news = True
            self._wake()

    def tell(self, report: QueryReport) -> None:
        """A query did a micro-batch."""
        with self._changed:
            if self._is_over:
                return
            before = self._reports.get(report.name)
            if before is None and len(self._reports) == MAX_QUERIES:
                return  # a broker has no room for more
            if before is not None and report.name in self._untold and not report.rows:
                # An idle batch says nothing about speed, and must not hide the one before it.
                report = report._replace(
                    rows=before.rows,
                    rows_per_second=before.rows_per_second,
                    batch_ms=before.batch_ms,
                )
            self._reports[report.name] = report
            self._untold.add(report.name)
            self._wake()

    def end(self, state: State, error: str | None = None) -> None:
        """The last word; waits until it is said, but not for long."""
        with self._changed:
            if self._is_over:
                return
            self._ui_url = None  # Spark's pages end with the pipeline
            self.say(state, error)
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
                    break  # there is nobody to tell
                failures = 0
            except _TROUBLE as error:
                self._hang_up()
                with self._changed:
                    self._has_news = True  # it was not heard
                if was_connected:
                    continue  # an old connection may end; a new one will show
                if is_last:
                    break  # of no use to anybody now
                self._warn(error)
                failures += 1
            if is_last:
                break
            self._pause(min(INTERVAL_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS))
        self._hang_up()
        with self._changed:
            self._is_over = True
            self._reports.clear()

    def _wait_for_news(self) -> bool:
        """Wait until there is something to say, or it is time for a beat; whether it is the end."""
        with self._changed:
            beat = BEAT_SECONDS if self._state == "running" else None
            self._changed.wait_for(
                lambda: self._is_over or self._has_news or bool(self._untold), beat
            )
            if not self._is_over and not self._is_alive():
                self._state, self._ui_url, self._is_over = "stopped", None, True
            return self._is_over

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, seconds)

    def _document(self, *, is_whole: bool) -> dict[str, Any]:
        """What there is to say now; it counts as said."""
        with self._changed:
            names = [name for name in self._reports if is_whole or name in self._untold]
            self._untold.clear()
            self._has_news = False
            return {
                "queries": [_query(self._reports[name]) for name in names],
                "state": self._state,
                "error": None if self._error is None else self._error[:MOST_ERROR_CHARACTERS],
                "ui_url": _url(self._ui_url),
            }

    # -- the wire --------------------------------------------------------------------------------

    def _send(self) -> bool:
        """Tell the broker; False when there is none that listens."""
        is_new = self._connection is None
        if self._connection is None:
            assert self._find is not None, "it would be over"
            self._address = self._find()
            if self._address is None:
                return False
            self._connection = _connection_to(self._address)
        assert self._address is not None
        # One that was not heard before, or not lately, may have to be told everything.
        body = json.dumps(self._document(is_whole=is_new), allow_nan=False).encode()
        path = f"{self._address.path}/api/v1/pipelines/{quote(self._name, safe='')}/progress"
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        said = answer.read(MOST_ANSWER_BYTES)
        if not 200 <= answer.status < 300:
            raise HTTPException(f"it answers {answer.status}: {_detail(said)}")
        return True

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "how %s is doing cannot be told to %s (%s); it goes on, and so do quiet attempts",
            self._name,
            self._address or "its broker",
            str(error) or type(error).__name__,
        )


def _connection_to(address: ReportAddress) -> HTTPConnection:
    kind = HTTPSConnection if address.is_tls else HTTPConnection
    return kind(address.host, address.port, timeout=PATIENCE_SECONDS)


def _query(report: QueryReport) -> dict[str, Any]:
    """A report as a broker takes it."""
    rate, watermark = report.rows_per_second, report.watermark
    return {
        **report._asdict(),
        "name": report.name[:MAX_NAME_CHARACTERS],
        # Spark divides by the time that a batch took, which may be none.
        "rows_per_second": rate if math.isfinite(rate) and rate > 0 else 0.0,
        "watermark": None if watermark is None else watermark[:MOST_WATERMARK_CHARACTERS],
    }


def _url(text: str | None) -> str | None:
    is_fit = text is not None and text.startswith("http") and len(text) <= MOST_URL_CHARACTERS
    return text if is_fit else None


def _detail(body: bytes) -> str:
    """What an answer that is a problem says, in short."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["detail"])[:MAX_NAME_CHARACTERS]
    return "no reason is given"
