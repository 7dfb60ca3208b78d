"""The `strandlog bench` commands: produce, consume, latency and spark.

They put a load on a broker or a folder and print records per second, bytes per second and latency
percentiles. A run ends after --records or --duration, whichever comes first; if neither is given,
after 100,000 records or 30 seconds. `consume` also ends at the end of the topic. `spark` reads the
whole topic once to warm up and then --rounds times, or until --duration ends; --records is the
number of records in its temporary topic. Without --topic, a run uses a temporary topic and deletes
it at the end, after the report is printed, even after an error or Ctrl-C; a topic given with
--topic is never deleted.

    exit code   0    records were measured, and there was no error
                1    there was an error, or no record was measured
                2    invalid command line
                130  Ctrl-C or SIGTERM, after printing the results so far
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from strandlog.cli.bench import workloads
from strandlog.cli.bench.html_report import plotly_path, write_html
from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.bench.plan import DEFAULT_RECORDS, DEFAULT_SECONDS, Plan
from strandlog.cli.bench.report import Report, print_report
from strandlog.cli.bench.run import (
    Outcome,
    benchmark_topic,
    finishing,
    interruptible_by_sigterm,
)
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Target,
    command_app,
    owned,
    target_of,
)
from strandlog.cli.output import message, print_json, time_text
from strandlog.client.api import OpenLog
from strandlog.clock import SystemClock
from strandlog.config.units import parse_duration_ms

MAX_SIZE = 100 * 1024 * 1024
MAX_CLIENTS = 256
SPARK_RECORDS = 1_000_000

app = command_app("Benchmark a broker or a folder.")


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration_ms(text if not text.isdecimal() else f"{text}s") / 1000
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a duration, such as 30s or 5m") from None
    if seconds <= 0:
        raise typer.BadParameter("a duration must be positive")
    return seconds


Records = Annotated[
    int | None, typer.Option("--records", metavar="N", min=1, help="Stop after N records.")
]
Duration = Annotated[
    float | None,
    typer.Option(parser=_seconds, metavar="TIME", help="Stop after this time: 30s, 5m, …"),
]
Size = Annotated[
    int, typer.Option(metavar="BYTES", min=0, max=MAX_SIZE, help="Size of a record's value.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        min=0.001,
        help="Total records per second; latency is then measured from when each record was due.",
    ),
]
AcksOption = Annotated[
    Literal["all", "1", "0"],
    typer.Option(
        help="all: wait until durable (log.durability); 1: wait for the write; 0: do not wait."
    ),
]
Compression = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"],
    typer.Option("-z", "--compression", help="Compression codec."),
]
Partitions = Annotated[
    int,
    typer.Option(
        "-p", "--partitions", metavar="N", min=1, help="Partition count if the topic is created."
    ),
]
Clients = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=MAX_CLIENTS, help="Number of concurrent clients."),
]
TopicName = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="Topic to use; created if it does not exist, and never deleted. Default: a temporary "
        "topic, which is deleted at the end.",
    ),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML report with a plot.")
]
Workload = Callable[[OpenLog, str, Plan, Measurement], Outcome]


@app.command()
def produce(
    records: Records = None,
    duration: Duration = None,
    size: Size = 1000,
    rate: Rate = None,
    acks: AcksOption = "all",
    compression: Compression = "none",
    partitions: Partitions = 1,
    clients: Clients = 1,
    topic: TopicName = None,
    html: Html = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Measure how fast records are written, and how long acknowledgements take."""
    target = target_of(data, bootstrap, client, client_config)
    plan = _plan(records, duration, size, rate, acks, compression, partitions, clients)
    _run("produce", target, topic, plan, workloads.produce, html, as_json=as_json)


@app.command()
def consume(
    records: Records = None,
    duration: Duration = None,
    size: Size = 1000,
    compression: Compression = "none",
    partitions: Partitions = 1,
    clients: Clients = 1,
    topic: TopicName = None,
    html: Html = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Measure how fast records are read, and how long a poll takes.

    Without --topic, the command first fills a temporary topic with --records records (default:
    100,000) of --size bytes. It then reads the topic from start to end, up to --records records.
    """
    target = target_of(data, bootstrap, client, client_config)
    plan = _plan(records, duration, size, None, "1", compression, partitions, clients)

    def workload(log: OpenLog, name: str, plan: Plan, measurement: Measurement) -> Outcome:
        if topic is None:
            filled = _fill(log, name, plan)
            if filled != Outcome():
                return filled
        return workloads.consume(log, name, plan, measurement)

    _run("consume", target, topic, plan, workload, html, as_json=as_json)


@app.command()
def latency(
    records: Records = None,
    duration: Duration = None,
    size: Size = 100,
    rate: Rate = None,
    acks: AcksOption = "all",
    compression: Compression = "none",
    partitions: Partitions = 1,
    clients: Clients = 1,
    topic: TopicName = None,
    html: Html = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Measure the time from sending a record until a consumer receives it.

    With --rate, time is measured from when the record was due, so that a slow broker cannot hide
    delays by slowing down the producer. Without --rate, each client sends the next record when the
    previous one has arrived.
    """
    target = target_of(data, bootstrap, client, client_config)
    if size < workloads.STAMP.size:
        raise typer.BadParameter(f"at least {workloads.STAMP.size} bytes", param_hint="--size")
    plan = _plan(records, duration, size, rate, acks, compression, partitions, clients)
    _run("latency", target, topic, plan, workloads.latency, html, as_json=as_json)


@app.command()
def spark(
    records: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Number of records in the temporary topic. Default: {SPARK_RECORDS:,}.",
        ),
    ] = None,
    duration: Duration = None,
    size: Size = 100,
    compression: Compression = "none",
    partitions: Partitions = 2,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Number of measured rounds.")
    ] = 3,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master: local[*], spark://HOST:PORT, …")
    ] = None,
    topic: TopicName = None,
    html: Html = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Measure how fast Spark reads a topic with format("strandlog").

    Without --topic, the command first fills a temporary topic with --records records of --size
    bytes. Each round reads the whole topic. A first round warms up and is not measured; --duration
    limits the time of the others.
    """
    from strandlog.cli.bench.spark_read import read_with_spark  # noqa: PLC0415 - imports Spark

    target = target_of(data, bootstrap, client, client_config)
    limit = SPARK_RECORDS if records is None else records
    plan = _plan(limit, duration, size, None, "1", compression, partitions, 1)

    def workload(log: OpenLog, name: str, plan: Plan, measurement: Measurement) -> Outcome:
        if topic is None:
            filled = _fill(log, name, plan)
            if filled != Outcome():
                return filled
        return read_with_spark(
            target, name, measurement, rounds=rounds, seconds=plan.seconds, master=master
        )

    _run("spark", target, topic, plan, workload, html, as_json=as_json)


def _plan(
    records: int | None,
    seconds: float | None,
    size: int,
    rate: float | None,
    acks: str,
    compression: str,
    partitions: int,
    clients: int,
) -> Plan:
    if records is None and seconds is None:
        records, seconds = DEFAULT_RECORDS, DEFAULT_SECONDS
    codec = None if compression == "none" else compression
    return Plan(records, seconds, size, rate, acks, codec, partitions, clients)


def _fill(log: OpenLog, topic: str, plan: Plan) -> Outcome:
    """Fill a temporary topic with --records records, by default `DEFAULT_RECORDS`."""
    return workloads.fill(
        log, topic, plan._replace(records=plan.records or DEFAULT_RECORDS, seconds=None)
    )


def _run(
    name: str,
    target: Target,
    topic: str | None,
    plan: Plan,
    workload: Workload,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run a benchmark and print its report."""
    _check_html(html)
    measurement = Measurement()
    started = time_text(SystemClock().now_ms(), "seconds") or ""
    address = str(target.bootstrap or target.data)
    option = f"{'-b' if target.bootstrap else '-d'} {shlex.quote(address)}"
    with ExitStack() as stack:
        stack.enter_context(interruptible_by_sigterm())
        log = stack.enter_context(owned(target, create=True))
        used = stack.enter_context(benchmark_topic(log, topic, plan.partitions, option))
        try:
            message(f"bench {name} with topic {used.name}; Ctrl-C stops it and prints the results")
            outcome = workload(log, used.name, plan, measurement)
        except KeyboardInterrupt:  # Ctrl-C before the clients started, or twice
            outcome = Outcome(is_interrupted=True)
        with finishing():
            measurement.finish()
            interrupted = outcome.is_interrupted
            document = Report(
                name, address, used.name, _options(plan), started, interrupted, measurement
            ).document()
            if outcome.error is not None:
                document["errors"] += 1
                document["error_messages"][str(outcome.error)] = 1
            _print(document, html, as_json=as_json)
    if outcome.is_interrupted:
        raise typer.Exit(130)
    if document["errors"] or not document["records"]:
        if not document["records"] and not document["errors"]:
            message("error: no records were measured: the topic is empty or --duration too short")
        raise typer.Exit(1)


def _print(document: dict[str, Any], html: Path | None, *, as_json: bool) -> None:
    """Print the report and, if wanted, write it as HTML."""
    if as_json:
        print_json(document)
    else:
        print_report(document)
    sys.stdout.flush()  # the deletion of the topic, which follows, can take long
    if html is not None:
        write_html(html, document)
        message(f"report: {html}")


def _options(plan: Plan) -> dict[str, Any]:
    return {
        "records": plan.records,
        "duration_seconds": plan.seconds,
        "size_bytes": plan.size,
        "rate": plan.rate,
        "acks": plan.acks,
        "compression": plan.compression or "none",
        "partitions": plan.partitions,
        "clients": plan.clients,
    }


def _check_html(html: Path | None) -> None:
    """Raise an error if plotly is missing, `html` is a folder, or its parent does not exist."""
    if html is None:
        return
    plotly_path()
    if html.is_dir() or not html.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"{html} is a folder, or its parent folder does not exist", param_hint="--html"
        )
