"""The files in `deploy` and the Dockerfile: settings exist, paths lead to files, units are valid.

tests/soak/test_container.py runs the steps of the Dockerfile.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.dockerfile import build_context, instructions

from strandlog.cli.configuration import read_file
from strandlog.config.resolve import Configuration, known_names, resolve
from strandlog.config.sources.environment import read_environment

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CONTAINER_SETTINGS = DEPLOY / "docker" / "strandlog.toml"
UNIT = DEPLOY / "systemd" / "strandlog.service"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def _valid(configuration: Configuration) -> Configuration:
    assert configuration.problems == []
    assert configuration.notes == []
    return configuration


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [DEPLOY / "strandlog.toml", CONTAINER_SETTINGS], ids=["example", "container"]
)
def test_example_settings_are_valid(path: Path) -> None:
    _valid(resolve([read_file(str(path))]))


def test_all_commented_examples_are_valid_settings(tmp_path: Path) -> None:
    text = (DEPLOY / "strandlog.toml").read_text()
    commented = re.findall(r"^# ([a-z.]+ = \".*\")$", text, re.MULTILINE)
    assert len(commented) >= 7
    path = tmp_path / "settings.toml"
    path.write_text("\n".join(each for each in commented if "keystore.location" not in each))
    problems = resolve([read_file(str(path))]).problems
    assert [each for each in problems if "ssl.keystore.location" not in str(each)] == []


def test_the_container_of_the_compose_file_has_valid_settings(compose: dict[str, Any]) -> None:
    environment = compose["services"]["strandlog"]["environment"]
    sources = [read_file(str(CONTAINER_SETTINGS)), read_environment(environment, known_names())]
    server = _valid(resolve(sources)).server
    assert server is not None
    assert [str(each) for each in server.kafka] == ["HOST://0.0.0.0:9092", "INSIDE://0.0.0.0:29092"]
    assert [str(each.advertised) for each in server.kafka] == ["localhost:9092", "strandlog:29092"]


# -- compose ---------------------------------------------------------------------------------------


def test_compose_mounts_files_that_exist(compose: dict[str, Any]) -> None:
    volumes = [each for service in compose["services"].values() for each in service["volumes"]]
    for source in (each.split(":")[0] for each in volumes):
        assert source in compose["volumes"] or (DEPLOY / source).exists(), source


def test_compose_opens_ports_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [each for service in compose["services"].values() for each in service["ports"]]
    assert [each for each in ports if not each.startswith("127.0.0.1:")] == []


def test_images_have_a_version(compose: dict[str, Any]) -> None:
    images = [each["image"] for each in compose["services"].values() if "build" not in each]
    assert [each for each in images if not re.search(r":v?\d+\.\d+", each)] == []


def test_prometheus_scrapes_the_broker_and_grafana_reads_prometheus(
    compose: dict[str, Any],
) -> None:
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [job] = scraping["scrape_configs"]
    assert job["job_name"] == "strandlog"  # as in the alert rules
    [[target]] = [each["targets"] for each in job["static_configs"]]
    assert target == "strandlog:9095"
    assert "127.0.0.1:9095:9095" in compose["services"]["strandlog"]["ports"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards/strandlog.yml").read_text())[
        "providers"
    ]
    board = "./grafana/strandlog.json:" + provider["options"]["path"] + "/strandlog.json:ro"
    assert board in compose["services"]["grafana"]["volumes"]


# -- systemd ---------------------------------------------------------------------------------------


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/strandlog/bin/strandlog", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert (checked.returncode, complaints) == (0, []), checked.stderr


def test_the_unit_waits_for_readiness_and_watches_the_broker() -> None:
    text = UNIT.read_text()
    for line in ("Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "DynamicUser=yes"):
        assert f"\n{line}\n" in text
    assert re.search(r"^WatchdogSec=\d+$", text, re.MULTILINE)


# -- the image -------------------------------------------------------------------------------------


def test_the_image_follows_the_rules_for_small_and_safe_images() -> None:
    steps = instructions()
    names = [name for name, _ in steps]
    values = dict(steps)
    assert "ADD" not in names
    assert names.count("FROM") == 2, "what builds the wheel is not in the image"
    assert all("-slim" in value for name, value in steps if name == "FROM")
    assert values["USER"] == "strandlog"
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert values["VOLUME"] == values["WORKDIR"] == "/var/lib/strandlog"
    assert "/readyz" in values["HEALTHCHECK"]
    assert values["ENTRYPOINT"].startswith("["), "signals reach the broker, not a shell"
    assert values["STOPSIGNAL"] == "SIGTERM"
    for name, value in steps:
        if name == "RUN" and "pip install" in value:
            assert "--no-cache-dir" in value
            assert "--constraint" in value


def test_the_build_gets_what_it_needs_and_little_more() -> None:
    assert "\n*\n" in (ROOT / ".dockerignore").read_text()
    kept = build_context()
    assert [each for each in kept if not (ROOT / each).exists()] == []
    copied = [
        value.split()[0]
        for name, value in instructions()
        if name == "COPY" and not value.startswith("--from") and value.split()[0] != "."
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(fnmatch(source, f"{each}*") for each in kept), f"{source} is ignored"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(kept)
    [extras] = re.findall(r'"/source\[([a-z,]+)\]"', " ".join(each for _, each in instructions()))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
