"""Builds the documentation site into build/site; any warning, broken link or missing anchor fails.

    python tools/build_docs.py         (make docs, which installs the packages first)

The pages keep the paths that they have in the repository, so their links work in both places:
build/docs-source gets the Markdown files and the files that they link to. The pages of the Python
API are written here, from the names below; mkdocstrings fills them from docstrings. Comments for
the tests of the guides are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "docs-source"
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("docs", "examples/flights")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
TEST_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
API = {
    "library": (
        "The Python library",
        "`strandlog.open` returns a `Log`, `strandlog.read` a `ReadOnlyLog`, `strandlog.connect` a "
        "`RemoteLog`. The guide is [The embedded library](../../guides/embed.md).",
        [
            *("strandlog.open", "strandlog.read", "strandlog.connect"),
            *("strandlog.client.embedded.log.Log", "strandlog.client.embedded.producer.Producer"),
            *("strandlog.client.consumer.Consumer", "strandlog.client.readonly.log.ReadOnlyLog"),
            *("strandlog.client.remote.log.RemoteLog", "strandlog.client.api"),
            *("strandlog.model.Record", "strandlog.model.RecordMetadata"),
            *("strandlog.model.TopicPartition", "strandlog.model.SkippedOffsets"),
            *("strandlog.broker.access.acl.Acl", "strandlog.broker.access.acl.AclFilter"),
        ],
    ),
    "aio": (
        "The library for asyncio",
        "The guide is [asyncio](../../guides/asyncio.md).",
        [
            *("strandlog.aio.open", "strandlog.aio.read", "strandlog.aio.connect"),
            *("strandlog.aio.log.Log", "strandlog.aio.producer.Producer"),
            "strandlog.aio.consumer.Consumer",
        ],
    ),
    "spark": (
        "Python with Spark",
        "The guides are [PySpark](../../guides/spark.md) and "
        "[Pipelines](../../guides/pipelines.md).",
        [
            *("strandlog.spark.session.session", "strandlog.spark.session.register"),
            "strandlog.spark.views.register_views",
            *("strandlog.spark.pipeline.runner.run", "strandlog.spark.pipeline.runner.start"),
            *("strandlog.spark.pipeline.runner.validate", "strandlog.spark.pipeline.file.load"),
            "strandlog.spark.pipeline.runner.RunningPipeline",
            *("strandlog.spark.pipeline.cases.run.load_cases",),
            *("strandlog.spark.pipeline.cases.run.check_case",),
        ],
    ),
    "testing": (
        "Testing",
        "The guide is [Test programs that use Kafka](../../guides/testing.md).",
        [
            *(
                "strandlog.testing.kafka.broker.broker",
                "strandlog.testing.kafka.broker.KafkaBroker",
            ),
            *("strandlog.testing.kafka.broker.NewRecord", "strandlog.testing.clock.FakeClock"),
            "strandlog.testing.disk.files.SimulatedFiles",
        ],
    ),
}


def collect() -> None:
    """Fill the source folder."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = [ROOT / name for name in PAGES]
    pages += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    for page in pages:
        text = page.read_text()
        for link in LINK.findall(text):
            _copy_linked(page.parent / link)
        _target(page).write_text(TEST_COMMENT.sub("", text))
    shutil.copytree(ROOT / "docs" / "images", SOURCE / "docs" / "images", dirs_exist_ok=True)
    for name, (title, text, names) in API.items():
        page = _target(ROOT / "docs" / "reference" / "python" / f"{name}.md")
        blocks = "\n".join(f"::: {each}\n" for each in names)
        page.write_text(f"# {title}\n\n{text}\n\n{blocks}")


def _target(path: Path) -> Path:
    target = SOURCE / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _copy_linked(path: Path) -> None:
    """Copy a file that a page links to, unless it is a page."""
    file = Path(os.path.normpath(path))
    if file.is_file() and file.suffix != ".md":
        shutil.copy(file, _target(file))


def main() -> None:
    collect()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=ROOT, check=False)
    if built.returncode == 0:
        print(f"{ROOT / 'build' / 'site' / 'index.html'}")
    sys.exit(built.returncode)


if __name__ == "__main__":
    main()
