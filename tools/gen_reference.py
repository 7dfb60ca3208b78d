"""Writes docs/reference from the tables in the code; `--check` only tells whether it is up to
date."""

from __future__ import annotations

import sys
from pathlib import Path

import strandlog.errors
from strandlog.config.broker_settings import BROKER_SETTINGS
from strandlog.config.kafka_names import ALIASES, NO_EFFECT, PROTECTION
from strandlog.config.server_settings import SERVER_SETTINGS
from strandlog.config.setting import SettingTable
from strandlog.config.topic_settings import TOPIC_SETTINGS
from strandlog.protocol.kafka.versions import APIS, GIVES, NOTES

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def settings_page() -> str:
    """Every setting with its default and what it allows."""
    parts = [
        "# Settings\n",
        "Generated from `config/`; names and defaults are Kafka's unless the text says otherwise. "
        "Sizes take `KiB`, `MiB`, `GiB`; times take `ms`, `s`, `m`, `h`, `d`.\n",
        "## Topics\n",
        *_rows(TOPIC_SETTINGS),
        "\n## Broker\n",
        "Given to `strandlog.open(path, settings={...})`, or to `strandlog serve` in a file, the "
        "environment or with `--set`.\n",
        *_rows(BROKER_SETTINGS),
        "\n## Server\n",
        "For `strandlog serve` only; DATA, `--host`, `--port` and `--advertise` beat them.\n",
        *_rows(SERVER_SETTINGS),
        "\n## Other names of Kafka\n",
        "Understood as another setting: "
        + ", ".join(f"`{name}` ({alias.name})" for name, alias in ALIASES.items())
        + ".\n",
        "Without effect here, noted at the start:\n",
        *(f"- {reason}: {_listed(names)}" for reason, names in NO_EFFECT.items()),
        f"\nRefused, because passing over them would leave a broker open: {_listed(PROTECTION)}.",
    ]
    return "\n".join(parts) + "\n"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}*`" if name.endswith(".") else f"`{name}`" for name in names)


def _rows(table: SettingTable) -> list[str]:
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for row in table:
        lines.append(
            f"| `{row.name}` | `{row.format(row.default)}` | {row.allowed()} | {row.help} |"
        )
    return lines


def errors_page() -> str:
    """The tree of errors, as its module draws it."""
    drawn = (strandlog.errors.__doc__ or "").replace("Every error", "Generated. Every error", 1)
    head, _, rest = drawn.partition("\n\n")
    tree, _, tail = rest.partition("\n\n")
    return f"# Errors\n\n{head}\n\n```\n{tree}\n```\n\n{tail.strip()}\n"


def kafka_apis_page() -> str:
    """The APIs and versions of Kafka's protocol that the broker speaks."""
    lines = [
        "# Kafka APIs\n",
        "Generated from `protocol/kafka/versions.py`, as ApiVersions tells it to clients. Versions "
        "are inclusive. A request in another version is hung up on, except ApiVersions; what is "
        "not listed is not advertised, and clients do without it.\n",
        "| key | API | versions | flexible from | what you get | notes |",
        "|--:|---|---|---|---|---|",
    ]
    for api in APIS:
        versions = f"{api.first}-{api.last}" if api.last > api.first else f"{api.first}"
        gives, notes = GIVES[api.name], NOTES.get(api.name, "")
        flexible = "never" if api.flexible_from > api.last else f"{api.flexible_from}"
        lines.append(f"| {api.key} | {api.name} | {versions} | {flexible} | {gives} | {notes} |")
    return "\n".join(lines) + "\n"


PAGES = {"settings.md": settings_page, "errors.md": errors_page, "kafka-apis.md": kafka_apis_page}


def main() -> int:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, page in PAGES.items():
        path = REFERENCE / name
        text = page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    print("out of date: " + ", ".join(stale) if stale else "docs/reference is up to date")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    raise SystemExit(main())
