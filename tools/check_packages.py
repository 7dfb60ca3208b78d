"""Builds wheel and sdist and installs them in fresh environments: one per extra and Python.

    python tools/check_packages.py [--python python3.12] [--extras server,cli]     (make packages)

1. The wheel and the sdist are built from the sdist, whose tests and documents are listed.
2. For each extra, a new virtual environment gets the wheel with that extra, and a small program
   uses the feature. The base package and the sdist are installed, too.
3. In environments without an extra, the program fails with one line that names the extra.

It needs PyPI and downloads about a gigabyte for all extras, so CI does not run it. Pythons that are
not installed are skipped, with a line that says so. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
IN_SDIST = (
    "tests/conftest.py",
    "docs/README.md",
    "examples/embedded.py",
    "Makefile",
    "SECURITY.md",
)
EMBED = """
import strandlog, tempfile
with strandlog.open(tempfile.mkdtemp() + "/data") as log:
    log.create_topic("orders")
    with log.producer() as producer:
        producer.send("orders", b"one tea")
    with log.consumer(["orders"]) as consumer:
        assert [record.value for record in consumer.poll()] == [b"one tea"]
"""
SERVE = """
import subprocess, sys, tempfile
arguments = [sys.executable, "-m", "strandlog", "serve", tempfile.mkdtemp() + "/data", "--port=0"]
process = subprocess.Popen([*arguments, "--http-port=0", {more}], stdout=-1, stderr=-1, text=True)
line = process.stdout.readline()
process.terminate()
rest = process.communicate()[1]
if not line.startswith("ready "): sys.exit(rest.strip().splitlines()[-1])
"""
TABLE = """
import sys, tempfile
from strandlog.tables.table import open_table
open_table(tempfile.mkdtemp() + "/table", {kind!r})
"""
ARROW = EMBED.replace(
    '[record.value for record in consumer.poll()] == [b"one tea"]',
    "consumer.poll_arrow().num_rows == 1",
)
SPARK = """
import strandlog, tempfile
from strandlog.spark import session
folder = tempfile.mkdtemp() + "/data"
with strandlog.open(folder) as log:
    log.create_topic("orders")
    with log.producer() as producer:
        producer.send("orders", b"one tea")
spark = session("local[1]")
source = spark.read.format("strandlog").option("path", folder).option("subscribe", "orders")
orders = source.load()
assert orders.count() == 1
# The tasks of table sinks use it.
assert orders.mapInArrow(lambda batches: batches, orders.schema).count() == 1
spark.stop()
"""
MAIN = "import sys; sys.argv[1:] = {words}; from strandlog.__main__ import main; main()"


@dataclass(frozen=True)
class Feature:
    """An extra and a program that uses it. `missing` runs without the extra, in an environment with
    `without`, and must fail with a line that names the extra; empty: there is no such program."""

    extra: str
    program: str
    missing: str = ""
    without: str = ""


CONFIG = MAIN.format(words=["config", "show"])
CERTIFICATES = "import strandlog.cli.security.certificates"
BROKER = "import strandlog.testing as t\nwith t.broker() as broker: broker.create_topic('orders')"
SERVE_HTTP, SERVE_GRPC = SERVE.format(more='"--no-grpc"'), SERVE.format(more='"--grpc-port=0"')
DELTA, ICEBERG = TABLE.format(kind="delta"), TABLE.format(kind="iceberg")
FEATURES = (
    Feature("", EMBED),
    Feature("cli", CONFIG, missing=CONFIG),
    Feature("server", SERVE_HTTP, missing=SERVE_HTTP),
    Feature("grpc", SERVE_GRPC, missing=SERVE_GRPC, without="server"),
    Feature(
        "client",
        "import confluent_kafka.admin, kio",
        missing="import strandlog; strandlog.connect('127.0.0.1:1')",
    ),
    Feature("security", CERTIFICATES, missing=CERTIFICATES),
    Feature(
        "schemas",
        "import avro, fastavro, grpc_tools, jsonschema_rs",
        missing="from strandlog.broker.schemas.avro import AvroSchemas as A; A().parse(None, None)",
        without="server",
    ),
    Feature("testing", BROKER, missing=BROKER),
    Feature("console", "import plotly"),  # without it, the console says so in place of its charts
    Feature("arrow", ARROW, missing=ARROW),
    Feature("spark", SPARK, missing="from strandlog.spark import session; session()"),
    Feature("delta", DELTA, missing=DELTA, without="cli"),
    Feature("iceberg", ICEBERG, missing=ICEBERG, without="cli"),
)


class Environments:
    """Fresh virtual environments of one Python, made when they are first asked for."""

    def __init__(self, python: str, wheel: Path, folder: Path) -> None:
        self._python = python
        self._wheel = wheel
        self._folder = folder
        self._made: dict[str, Path] = {}

    def with_extra(self, extra: str) -> Path:
        """The Python of an environment with the wheel and an extra."""
        if extra not in self._made:
            suffix = f"[{extra}]" if extra else ""
            self._made[extra] = self.new(extra or "base", f"{self._wheel}{suffix}")
        return self._made[extra]

    def new(self, name: str, *packages: str) -> Path:
        folder = self._folder / f"{self._python}-{name}"
        _run(self._python, "-m", "venv", str(folder))
        python = folder / "bin" / "python"
        _run(str(python), "-m", "pip", "install", "--quiet", *packages)
        return python


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    _run(sys.executable, "-m", "venv", str(folder / "build"))
    python = str(folder / "build" / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", "build")
    _run(python, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT))
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    if missing:
        sys.exit(f"{sdist.name} lacks {', '.join(missing)}")
    print(f"ok    {sdist.name}: {len(names)} files, with tests and documents")
    print(f"ok    {wheel.name}: {wheel.stat().st_size // 1024} KiB")
    return sdist, wheel


def check(python: str, feature: Feature, environments: Environments) -> bool:
    """Run the programs of a feature with and without its extra, and print a line for each."""
    name = feature.extra or "base"
    worked = _program(environments.with_extra(feature.extra), feature.program)
    good = worked.returncode == 0
    print(f"{'ok  ' if good else 'FAIL'}  {python} {name}: {'works' if good else worked.stderr}")
    if not feature.missing:
        return good
    failed = _program(environments.with_extra(feature.without), feature.missing)
    lines = failed.stderr.strip().splitlines()
    hint = lines[-1] if lines else ""
    told = failed.returncode != 0 and "pip install 'strandlog[" in hint
    print(f"{'ok  ' if told else 'FAIL'}  {python} without {name}: {hint}")
    return good and told


def _program(python: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=False, cwd="/"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", help="Only this Python; repeatable.")
    parser.add_argument("--extras", help="Only these extras, separated by commas.")
    arguments = parser.parse_args()
    wanted = None if arguments.extras is None else ["", *arguments.extras.split(",")]
    is_good = True
    with tempfile.TemporaryDirectory(prefix="strandlog-packages-") as temporary:
        folder = Path(temporary)
        sdist, wheel = build(folder)
        for python in arguments.python or PYTHONS:
            if shutil.which(python) is None:
                print(f"skip  {python}: not installed")
                continue
            environments = Environments(python, wheel, folder)
            for feature in FEATURES:
                if wanted is None or feature.extra in wanted:
                    is_good &= check(python, feature, environments)
            worked = _program(environments.new("sdist", str(sdist)), EMBED)
            is_good &= worked.returncode == 0
            print(f"{'FAIL' if worked.returncode else 'ok  '}  {python} sdist {worked.stderr}")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
