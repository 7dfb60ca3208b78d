"""The report of the comparison with Apache Kafka: ratios, the written section, the plot."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.kafka.report import (
    BEGIN,
    END,
    Figure,
    growth,
    markdown,
    plot,
    shown,
    write_section,
)

RATE = Figure(
    "produce", "records/s", True, {"strandlog": [3.0, 2.0, 9.0], "Kafka": [1.0, 2.0, 6.0]}
)
LATENCY = Figure(
    "p99",
    "ms",
    False,
    {"strandlog": [4.0], "strandlog, page cache": [1.0], "Kafka": [2.0], "Kafka, fsync": [8.0]},
)


def test_a_ratio_above_one_means_that_strandlog_is_better() -> None:
    assert RATE.ratios == {"Kafka": 1.5}
    assert LATENCY.ratios == {"Kafka": 0.5, "Kafka, fsync": 2.0}


def test_figures_without_kafka_have_no_ratio() -> None:
    assert Figure("start", "s", False, {"strandlog": [1.0]}).ratios == {}


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1234, "1.23 k"), (1_500_000, "1.5 M"), (0, "0")]
)
def test_values_have_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_section_of_the_document_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("# Benchmarks\n\nbefore\n")
    write_section(document, "first")
    document.write_text(document.read_text() + "\nafter\n")
    write_section(document, markdown([RATE, LATENCY], rounds=3))
    text = document.read_text()
    assert (text.count(BEGIN), text.count(END), text.count("first")) == (1, 1, 0)
    assert text.startswith("# Benchmarks\n\nbefore\n")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "| produce | records/s | strandlog | 3 (2 to 9) |  |" in text
    assert "|  |  | Kafka | 2 | **0.50** |" in text


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    plot([RATE, LATENCY], tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_the_growth_of_a_series_is_its_exponent() -> None:
    figures = [
        Figure(
            f"{size} partitions",
            "records/s",
            True,
            {"strandlog": [5.0], "Kafka": [1000 / size**0.5]},
            series="by partitions",
            size=size,
        )
        for size in (1, 10, 100)
    ]
    found = growth([RATE, *figures])
    assert found == {"by partitions": {"strandlog": 0, "Kafka": pytest.approx(-0.5)}}
    assert "- by partitions: strandlog +0.00, Kafka -0.50" in markdown(figures, rounds=1)
