"""The snippets of the pipelines guide: every file is valid, the cases pass, the programs run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.spark.pipeline import check_case, load_cases, validate

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pipelines.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(GUIDE.read_text()) if name == language]


def whole(block: str) -> str:
    """A pipeline file with a block: as it is, or with the other tables of the first one."""
    first = blocks("toml")[0]
    tables = tomllib.loads(block)
    if "source" in tables:
        return block
    if "name" in tables.get("pipeline", {}):
        return block + first[first.index("[[source]]") :]
    return first + "\n" + block


def pipeline_blocks() -> list[str]:
    return [block for block in blocks("toml") if "[[case]]" not in block]


@pytest.mark.parametrize("number", range(len(pipeline_blocks())))
def test_every_pipeline_of_the_guide_is_valid(number: int, spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(whole(pipeline_blocks()[number]))
    found = validate(file, spark)
    assert (found.problems, found.unchecked) == ([], [])


@pytest.mark.timeout(600)
def test_the_cases_of_the_guide_pass(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(pipeline_blocks()[0])
    [cases] = [block for block in blocks("toml") if "[[case]]" in block]
    (tmp_path / "flights.test.toml").write_text(cases)
    assert len(load_cases(file)) == 2
    for case in load_cases(file):
        check_case(file, case, spark)


@pytest.mark.timeout(600)
def test_the_programs_of_the_guide_run(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = pipeline_blocks()[0].replace("127.0.0.1:9092", broker.address)
    # Java keeps the working directory in which it was started.
    assert '"./checkpoints"' in text
    text = text.replace("./checkpoints", str(tmp_path / "checkpoints"))
    Path("flights.toml").write_text(text)
    [cases] = [block for block in blocks("toml") if "[[case]]" in block]
    Path("flights.test.toml").write_text(cases)
    client.create_topic("flights", 1)
    tp = TopicPartition("flights", 0)
    row = b'{"origin": "JFK", "dep_delay": 1, "time_hour": "2026-01-01T10:00:00Z"}'
    assert client.produce({tp: [build_batch(1, [row])]})[tp].error is None
    for program in blocks("python"):
        exec(compile(program.replace("wait(60)", "wait(1)"), "guide", "exec"), {})
    assert "delays-topic-delays: batch 0  1 rows" in capsys.readouterr().out
