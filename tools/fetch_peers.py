"""Fetches optional clients and brokers for tests/clients and benchmarks.

    kafkajs   and its schema registry client, with npm
    java      Kafka's Java client, in its newest and its oldest supported version, with Maven
    registryjava  Confluent's Java client of registries, in Apache Flink's package, with Maven
    kafka     Apache Kafka's broker, against which our own client is tested, with Maven
    spark     PySpark and its Kafka connector, with pip (in a separate environment) and Maven
    connector the newest available Kafka connector for our PySpark, for benchmarks, with Maven

`make peers` stores them in $COMPAT_PEERS or, by default, in the user's cache. Tests look for them
there and are skipped, with a reason, if a peer is missing. Each tool uses its configured registry.
A folder has the version in its name and a marker file once it is complete, so interrupted downloads
are repeated, and a new version below gets a new folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

KAFKAJS_VERSION = "2.2.4"
REGISTRYJS_VERSION = "4.1.0"
KAFKA_CLIENTS_VERSION = "4.4.0"
OLDEST_CLIENTS_VERSION = "2.1.1"
SLF4J_VERSION = "2.0.20"
FLINK_VERSION = "1.20.0"
SPARK_VERSION = "4.0.0"  # the newest version with all jars available
CONNECTOR_VERSION = "4.2.0"  # the newest available version; works with Spark 4.3
SCALA_VERSION = "2.13"
KAFKA_BROKER_VERSION = "4.0.0"
COMPLETE = ".complete"

# All jars are listed here instead of being resolved by Maven, because Spark's POM files refer to
# additional registries for dependencies. PySpark includes the other dependencies, like codecs.
JAVA_JARS = (
    ("org.apache.kafka", "kafka-clients", KAFKA_CLIENTS_VERSION),
    ("org.slf4j", "slf4j-api", SLF4J_VERSION),
    ("org.slf4j", "slf4j-nop", SLF4J_VERSION),
    ("org.xerial.snappy", "snappy-java", "1.1.10.7"),
    ("at.yawk.lz4", "lz4-java", "1.11.2"),
    ("com.github.luben", "zstd-jni", "1.5.7-17"),
)
OLDEST_JARS = (
    ("org.apache.kafka", "kafka-clients", OLDEST_CLIENTS_VERSION),
    ("org.slf4j", "slf4j-api", SLF4J_VERSION),
    ("org.slf4j", "slf4j-nop", SLF4J_VERSION),
    ("org.xerial.snappy", "snappy-java", "1.1.7.2"),
    ("org.lz4", "lz4-java", "1.5.0"),
    ("com.github.luben", "zstd-jni", "1.3.7-1"),
)
# Maven Central lacks Confluent's packages, but this one contains their registry client.
REGISTRY_JARS = (
    ("org.apache.flink", "flink-sql-avro-confluent-registry", FLINK_VERSION),
    ("org.slf4j", "slf4j-api", SLF4J_VERSION),
    ("org.slf4j", "slf4j-nop", SLF4J_VERSION),
)
SPARK_JARS = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", SPARK_VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", SPARK_VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
CONNECTOR_JARS = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", CONNECTOR_VERSION),
    # Only needed for delegation tokens, which are not used here; 4.2.0 is not available.
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
BROKER_JARS = (
    ("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_BROKER_VERSION),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
)
POM = """<project>
<modelVersion>4.0.0</modelVersion>
<groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = """<dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
{exclusions}</dependency>"""
NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class Peer(NamedTuple):
    """An optional client or broker, and how to fetch it."""

    name: str
    version: str
    tools: tuple[str, ...]
    fetch: Callable[[Path], None]

    @property
    def folder(self) -> Path:
        return home() / f"{self.name}-{self.version}"

    @property
    def is_complete(self) -> bool:
        return (self.folder / COMPLETE).exists()

    def missing_tools(self) -> list[str]:
        return [tool for tool in self.tools if shutil.which(tool) is None]


def home() -> Path:
    """Return the folder that contains all peers."""
    given = os.environ.get("COMPAT_PEERS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "strandlog" / "peers"


def _run(*arguments: str | Path, cwd: Path) -> None:
    subprocess.run([str(argument) for argument in arguments], cwd=cwd, check=True)


def _fetch_jars(
    folder: Path, jars: tuple[tuple[str, str, str], ...], exclusions: str = NOTHING_ELSE
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    rows = [DEPENDENCY.format(*jar, exclusions=exclusions) for jar in jars]
    pom.write_text(POM.format(dependencies="".join(rows)))
    _run(
        *("mvn", "--batch-mode", "--quiet", "-f", pom, "dependency:copy-dependencies"),
        *(f"-DoutputDirectory={folder}", "-DincludeScope=runtime"),
        cwd=folder,
    )


def _fetch_kafkajs(folder: Path) -> None:
    (folder / "package.json").write_text('{"private": true}\n')
    _run("npm", "install", "--no-audit", "--no-fund", f"kafkajs@{KAFKAJS_VERSION}", cwd=folder)


def _fetch_registryjs(folder: Path) -> None:
    (folder / "package.json").write_text('{"private": true}\n')
    name = f"@kafkajs/confluent-schema-registry@{REGISTRYJS_VERSION}"
    _run("npm", "install", "--no-audit", "--no-fund", name, cwd=folder)


def _fetch_java(folder: Path) -> None:
    _fetch_jars(folder, JAVA_JARS)


def _fetch_oldest_java(folder: Path) -> None:
    _fetch_jars(folder, OLDEST_JARS)


def _fetch_registryjava(folder: Path) -> None:
    _fetch_jars(folder, REGISTRY_JARS)


def _fetch_broker(folder: Path) -> None:
    _fetch_jars(folder, BROKER_JARS, exclusions="")  # including all dependencies


def _fetch_connector(folder: Path) -> None:
    _fetch_jars(folder, CONNECTOR_JARS)


def _fetch_spark(folder: Path) -> None:
    _fetch_jars(folder / "jars", SPARK_JARS)
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", f"pyspark=={SPARK_VERSION}", cwd=folder)


KAFKAJS = Peer("kafkajs", KAFKAJS_VERSION, ("node", "npm"), _fetch_kafkajs)
REGISTRYJS = Peer("registryjs", REGISTRYJS_VERSION, ("node", "npm"), _fetch_registryjs)
JAVA = Peer("java", KAFKA_CLIENTS_VERSION, ("java", "mvn"), _fetch_java)
OLDEST_JAVA = Peer("java", OLDEST_CLIENTS_VERSION, ("java", "mvn"), _fetch_oldest_java)
REGISTRYJAVA = Peer("registryjava", FLINK_VERSION, ("java", "mvn"), _fetch_registryjava)
SPARK = Peer("spark", SPARK_VERSION, ("java", "mvn"), _fetch_spark)
CONNECTOR = Peer("connector", CONNECTOR_VERSION, ("java", "mvn"), _fetch_connector)
KAFKA_BROKER = Peer("kafka-broker", KAFKA_BROKER_VERSION, ("java", "mvn"), _fetch_broker)
PEERS = (
    *(KAFKAJS, REGISTRYJS, JAVA, OLDEST_JAVA, REGISTRYJAVA),
    *(SPARK, CONNECTOR, KAFKA_BROKER),
)


def fetch(peer: Peer) -> bool:
    """Fetch a peer; print the reason and return False if that is not possible."""
    if peer.is_complete:
        print(f"{peer.name} {peer.version}: already fetched, in {peer.folder}")
        return True
    missing = peer.missing_tools()
    if missing:
        print(f"{peer.name} {peer.version}: needs {' and '.join(missing)}; its tests will skip")
        return False
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    try:
        peer.fetch(peer.folder)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{peer.name} {peer.version}: could not be fetched: {error}; its tests will skip")
        return False
    (peer.folder / COMPLETE).touch()
    print(f"{peer.name} {peer.version}: fetched into {peer.folder}")
    return True


def main() -> int:
    here = [fetch(peer) for peer in PEERS]  # continue after a failure
    return 0 if all(here) else 1


if __name__ == "__main__":
    sys.exit(main())
