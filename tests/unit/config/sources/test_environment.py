"""Settings from environment variables."""

from __future__ import annotations

from strandlog.config.resolve import known_names
from strandlog.config.sources.environment import ALIAS_VARIABLES, read_environment, variable_of


def test_a_name_becomes_a_variable() -> None:
    assert variable_of("log.retention.ms") == "STRANDLOG_LOG_RETENTION_MS"


def test_no_two_settings_share_a_variable() -> None:
    variables = [variable_of(name) for name in known_names()]
    assert len(set(variables)) == len(variables)
    assert not set(variables) & set(ALIAS_VARIABLES)


def test_only_variables_with_the_prefix_are_read() -> None:
    source = read_environment(
        {"STRANDLOG_LOG_RETENTION_MS": "7d", "STRANDLOG_DATA": "/d", "HOME": "/h", "LOG_DIRS": "x"},
        known_names(),
    )
    assert not source.problems
    found = {entry.name: (entry.raw, str(entry.origin)) for entry in source.entries}
    assert found == {
        "log.dirs": ("/d", "STRANDLOG_DATA"),
        "log.retention.ms": ("7d", "STRANDLOG_LOG_RETENTION_MS"),
    }


def test_a_misspelt_variable_is_a_problem_with_a_suggestion() -> None:
    (problem,) = read_environment({"STRANDLOG_LOG_RETENTON_MS": "1"}, known_names()).problems
    assert "did you mean STRANDLOG_LOG_RETENTION_MS?" in str(problem)


def test_an_empty_variable_counts_as_unset() -> None:
    source = read_environment({"STRANDLOG_LOG_RETENTION_MS": "", "STRANDLOG_X": ""}, known_names())
    assert not source.entries
    assert not source.problems


def test_variables_of_kubernetes_and_of_other_commands_are_ignored() -> None:
    variables = {
        "STRANDLOG_SERVICE_HOST": "10.0.0.1",
        "STRANDLOG_SERVICE_PORT": "9092",
        "STRANDLOG_SERVICE_PORT_KAFKA": "9092",
        "STRANDLOG_PORT": "tcp://10.0.0.1:9092",
        "STRANDLOG_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "STRANDLOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "STRANDLOG_CONFIG": "server.toml",
        "STRANDLOG_CACHE_DIR": "./cache",
        "STRANDLOG_CONTEXT": "prod",
    }
    source = read_environment(variables, known_names())
    assert not source.entries
    assert not source.problems
