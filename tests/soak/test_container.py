"""The steps of the Dockerfile, in a virtual environment; and the build itself where Docker runs.

The steps install strandlog as in the image, but find its dependencies where these tests find them,
because installing a hundred packages again takes a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.support.dockerfile import ROOT, build_context, instructions
from tests.support.waiting import eventually

BUILD_SECONDS = 600


def test_the_steps_of_the_image_lead_to_a_healthy_broker(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "opt"
    for name in build_context():
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    steps = instructions()
    build = next(value for name, value in steps if name == "RUN")
    command = build.replace("/opt/strandlog", str(target)).replace("/source", str(source))
    command = command.replace("pip install", "pip install --no-deps")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Without PYTHONPATH, so that only what was installed is found.
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = path
    for step in command.split("&&"):
        done = subprocess.run(
            ["sh", "-c", step], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if "venv" in step:
            [packages] = target.glob("lib/python*/site-packages")
            (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
    assert (packages / "strandlog" / "server" / "app.py").exists()

    values = dict(steps)
    serve = [*json.loads(values["ENTRYPOINT"]), *json.loads(values["CMD"])]
    settings = (source / "deploy" / "docker" / "strandlog.toml").read_text()
    file = tmp_path / "strandlog.toml"
    settings = settings.replace("/var/lib/strandlog", str(tmp_path / "data"))
    for port in ("9092", "9094", "9095"):  # another broker may use the ports of the image
        settings = settings.replace(f"0.0.0.0:{port}", "0.0.0.0:0")
    file.write_text(settings)
    environment |= {"PATH": f"{target / 'bin'}:{path}", "STRANDLOG_CONFIG": str(file)}
    exposed = subprocess.run(serve, env=environment, capture_output=True, text=True, check=False)
    assert exposed.returncode != 0, "it is open to the network only if it is asked to"
    assert "--insecure" in exposed.stderr

    file.write_text(settings.replace("0.0.0.0:", "127.0.0.1:"))
    with subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        assert ready[0] == "ready"
        [http] = [word.partition(":")[2] for word in ready if word.startswith("http=")]
        check = json.loads(values["HEALTHCHECK"].partition("CMD")[2])
        check = [word.replace("9095", http) for word in check]
        eventually(
            lambda: subprocess.run(check, env=environment, check=False).returncode == 0, "up"
        )
        broker.send_signal(signal.SIGTERM)
        assert broker.wait() == 0
    assert not _passes(check, environment)


def _passes(command: list[str], environment: dict[str, str]) -> bool:
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return done.returncode == 0


def test_docker_builds_the_image() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    info = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    if info.returncode:
        pytest.skip(f"no Docker daemon: {info.stderr.strip().splitlines()[-1]}")
    subprocess.run(
        ["docker", "build", "--tag", "strandlog-test", str(ROOT)], check=True, timeout=BUILD_SECONDS
    )
    shown = subprocess.run(
        ["docker", "run", "--rm", "strandlog-test", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip()
