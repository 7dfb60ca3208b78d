"""Generates docs/reference from the tables in the code; `--check` only reports outdated pages."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from kio.schema.errors import ErrorCode

import strandlog.errors
from strandlog.broker.metrics import LIMITS_SECONDS
from strandlog.broker.metrics import table as metrics
from strandlog.cli.formats.documents import DOCUMENTS, VERSION
from strandlog.cli.main import COMMANDS
from strandlog.config.limits import FIXED_LIMITS
from strandlog.config.setting import SettingTable
from strandlog.config.sources.kafka_names import ALIASES, NO_EFFECT, SECURITY
from strandlog.config.tables import client as client_settings
from strandlog.config.tables.broker import BROKER_SETTINGS
from strandlog.config.tables.server import SERVER_SETTINGS
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import StrandlogError
from strandlog.server.http.metrics.families import FAMILIES
from strandlog.server.kafka.api import KafkaApi
from strandlog.server.kafka.handlers import declared_apis
from strandlog.spark.options import BATCH, OPTIONS, SINK, STREAM, Option

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
CLI_HEAD = """# Commands

Generated from `cli/`. Data goes to stdout, messages go to stderr. Exit codes: 0 success, 1 failure,
2 usage error, 130 Ctrl-C. Examples: [guide to the command line](../guides/cli.md).

`strandlog --context NAME COMMAND` runs a command on the log of a
[context](../guides/cli.md#contexts).
"""
COMMON_OPTIONS = ("data", "bootstrap", "client", "client_config", "as_json")
LEFT_OUT_OPTIONS = ("install_completion", "show_completion")


def settings_page() -> str:
    """Return the page of all settings, with defaults and allowed values."""
    parts = [
        "# Settings\n",
        "Generated from `config/`; names and defaults are those of Kafka unless stated otherwise. "
        "Sizes take `KiB`, `MiB`, `GiB`; times take `ms`, `s`, `m`, `h`, `d`.\n",
        "## Topics\n",
        *_rows(TOPIC_SETTINGS),
        "\n## Broker\n",
        "For `strandlog.open(path, settings={...})`, and for `strandlog serve` in a file, the "
        "environment or `--set`. Clients can change the settings marked * at run time "
        "(AlterConfigs); such a change is durable and takes precedence over all other sources.\n",
        *_rows(BROKER_SETTINGS, marks_dynamic=True),
        "\n## Server\n",
        "Only for `strandlog serve`; DATA, `--host`, `--port` and `--advertise` take precedence.\n",
        *_rows(SERVER_SETTINGS),
        "\n## Other Kafka settings\n",
        "Accepted under another name: "
        + ", ".join(f"`{name}` ({alias.name})" for name, alias in ALIASES.items())
        + ".\n",
        "Without effect; the broker logs a warning at start-up:\n",
        *(f"- {reason}: {_listed(names)}" for reason, names in NO_EFFECT.items()),
        "\nRejected, because ignoring them would leave the broker unprotected: "
        f"{_listed(SECURITY)}.",
        "\n## Client\n",
        "For `strandlog.connect`, the command line (`-X`, `--client-config`), Spark's source and "
        "sink (with the prefix `kafka.`) and pipelines. A settings file "
        "(`STRANDLOG_CLIENT_CONFIG`) and variables such as `STRANDLOG_CLIENT_SASL_USERNAME` supply "
        "them too; the program takes precedence over the variables, and these over the file. "
        "`${file:PATH}` and `${env:NAME}` in a value are replaced by the contents of a file or of "
        "a variable. Settings that are not listed have no effect on Spark; `strandlog.connect` "
        "passes them to librdkafka.\n",
        *_rows(client_settings.CLIENT_SETTINGS),
        "\nOther names: "
        + ", ".join(f"`{name}` ({known})" for name, known in client_settings.ALIASES.items())
        + ".\n",
        "Settings of Java clients that set several others: "
        + "; ".join(f"`{name}` sets {known}" for name, known in client_settings.JAVA_ONLY.items())
        + ".\n",
        "Rejected by Spark's source and sink, because ignoring them would weaken security: "
        f"{_listed(tuple(client_settings.SECURITY))}.",
        "\n## Fixed limits\n",
        "Not settings: no client needs a larger value, or a protocol or file format defines it.\n",
        "| limit | value | above it | why it is fixed |",
        "|---|--:|---|---|",
        *(
            f"| {each.meaning} | {each.value:,} | {each.above} | {each.why} |"
            for each in FIXED_LIMITS
        ),
    ]
    return "\n".join(parts) + "\n"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}*`" if name.endswith(".") else f"`{name}`" for name in names)


def _rows(table: SettingTable, *, marks_dynamic: bool = False) -> list[str]:
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for row in table:
        mark = " *" if marks_dynamic and row.is_dynamic else ""
        allowed = row.allowed() + (", secret" if row.is_secret else "")
        lines.append(
            f"| `{row.name}`{mark} | `{row.shown(row.default)}` | {allowed} | {row.help} |"
        )
    return lines


def errors_page() -> str:
    """Return the page of errors: the tree from the module's docstring, and each error's codes."""
    drawn = (strandlog.errors.__doc__ or "").replace("Every error", "Generated. Every error", 1)
    head, _, rest = drawn.partition("\n\n")
    tree, _, tail = rest.partition("\n\n")
    lines = [
        f"# Errors\n\n{head}\n\n```\n{tree}\n```\n\n{tail.strip()}\n",
        "## Codes\n",
        "HTTP responses are problem+json (RFC 9457) with the type `urn:strandlog:problem:` and the "
        "title in lower case with hyphens. Node codes are Maelstrom's.\n",
        "| error | title | Kafka | HTTP | gRPC | node | retriable |",
        "|---|---|---|---|---|---|---|",
    ]
    for error in _tree(strandlog.errors.StrandlogError):
        codes = error.codes
        kafka_name = ErrorCode(codes.kafka).name.upper()
        lines.append(
            f"| `{error.__name__}` | {error.title()} | {codes.kafka} {kafka_name} "
            f"| {codes.http} | {codes.grpc} | {codes.node} | {'yes' if error.retriable else ''} |"
        )
    return "\n".join(lines) + "\n"


def _tree(kind: type[StrandlogError]) -> Iterator[type[StrandlogError]]:
    """Yield the subclasses of `kind` in errors.py, in depth-first order."""
    for child in kind.__subclasses__():
        if child.__module__ == strandlog.errors.__name__:
            yield child
            yield from _tree(child)


def kafka_apis_page() -> str:
    """Return the page of the Kafka APIs and versions that the broker supports."""
    lines = [
        "# Kafka APIs\n",
        "Generated from the declarations beside the handlers (`server/kafka/handlers`), which also "
        "define the ApiVersions response. Versions are inclusive. A request in another version "
        "closes the connection, except ApiVersions; an API that is not listed is not advertised, "
        "and clients do without it.\n",
        "*Permissions* are what the broker checks if `authorizer.class.name` is set; without it, "
        "every client may do everything. Of two separated by *or*, one is enough. HTTP and gRPC "
        "requests need the same permissions as the Kafka APIs with the same effect.\n",
        "| key | API | versions | flexible from | description | notes | permissions |",
        "|--:|---|---|---|---|---|---|",
        *map(_api_row, declared_apis()),
    ]
    return "\n".join(lines) + "\n"


def _api_row(api: KafkaApi) -> str:
    first, last = api.versions[0], api.last_version
    versions = f"{first}-{last}" if last > first else f"{first}"
    flexible = "never" if api.api.flexible_from > last else f"{api.api.flexible_from}"
    permissions = "; ".join(
        " or ".join(map(str, each)) if isinstance(each, tuple) else str(each)
        for each in api.requires
    )
    return (
        f"| {api.key} | {api.name} | {versions} | {flexible} | {api.summary} | {api.notes} "
        f"| {permissions or 'none'} |"
    )


def cli_page() -> str:
    """Return the page of all commands and their options, generated from the command objects."""
    commands = {
        name: typer.main.get_command(importlib.import_module(module).app)
        for name, (module, _) in COMMANDS.items()
    }
    parts = [CLI_HEAD, *_common(commands["consume"])]
    for name, command in commands.items():
        parts += _described(f"strandlog {name}", command)
    return "\n".join(parts).rstrip() + "\n"


def _common(command: Any) -> Iterator[str]:
    """Yield a table of the options that most commands share."""
    yield "| common option | meaning |"
    yield "|---|---|"
    for param in command.params:
        if param.name in COMMON_OPTIONS:
            yield f"| {_names(param)} | {_meaning(param)} |"
    yield ""


def _described(path: str, command: Any) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children:
        for name, child in children.items():
            yield from _described(f"{path} {name}", child)
        return
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = " ".join(param.metavar or (param.name or "").upper() for param in arguments)
    yield f"## `{f'{path} {words}'.strip()}`\n"
    yield f"{_text(command.help)}\n"
    options = [param for param in command.params if param.param_type_name == "option"]
    shared = [param.opts[0] for param in options if param.name in COMMON_OPTIONS]
    own = [param for param in options if param.name not in COMMON_OPTIONS + LEFT_OUT_OPTIONS]
    if own:
        yield "| option | meaning |"
        yield "|---|---|"
        for param in own:
            yield f"| {_names(param)} | {_meaning(param)} |"
        yield ""
    if shared:
        yield "Also " + ", ".join(f"`{name}`" for name in shared) + ".\n"


def _names(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return f"{names} {param.metavar}" if param.metavar else names


def _meaning(param: Any) -> str:
    parts = [_text(param.help)] if param.help else []
    default = param.default
    if isinstance(default, int | float | str) and not isinstance(default, bool):
        parts.append(f"Default: `{default}`.")
    if param.envvar:
        parts.append(f"Environment: `{param.envvar}`.")
    return " ".join(parts)


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def metrics_page() -> str:
    """Return the page of all metrics of a broker."""
    limits = ", ".join(f"{limit:g}" for limit in LIMITS_SECONDS)
    parts = [
        "# Metrics\n",
        "Generated from `broker/metrics.py` and `server/http/metrics/families.py`, "
        "as exported at `/metrics`, in addition to `process_*`. The buckets of histograms end at "
        f"{limits} seconds.\n",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    parts += [
        f"| `{row.exported_name}` | {row.kind} | {row.label} | {row.help} |" for row in metrics()
    ]
    parts += [
        f"| `{row.name}` | {row.kind} | {', '.join(row.labels)} | {row.help} |" for row in FAMILIES
    ]
    return "\n".join(parts) + "\n"


def spark_options_page() -> str:
    """Return the page of the options of the Spark source and sink."""
    lines = [
        "# Spark options\n",
        'Generated from `spark/options.py`: options of `format("strandlog")`. Names and defaults '
        "are those of Spark's Kafka source and sink; case does not matter. `kafka.*` options go to "
        "the client ([settings](settings.md#client)). The guide is [spark.md](../guides/spark.md).",
    ]
    for title, uses in (("Source", (BATCH, STREAM)), ("Sink", (SINK,))):
        lines += [f"\n## {title}\n", "| option | default | for | meaning |", "|---|---|---|---|"]
        for option in OPTIONS:
            known = [use for use in uses if use in option.uses]
            if known and (option.name, title) != ("path", "Sink"):
                default = _option_default(option)
                text = f"| `{option.name}` | {default} | {', '.join(known)} | {option.help} |"
                lines.append(text)
    return "\n".join(lines) + "\n"


def _option_default(option: Option) -> str:
    if option.name == "endingOffsets":
        return "`latest`"  # stored as a number
    if isinstance(option.default, bool):
        return f"`{str(option.default).lower()}`"
    return "" if option.default is None else f"`{option.default}`"


def json_page() -> str:
    """Return the page of the JSON documents of the command line."""
    parts = [
        "# JSON of the command line\n",
        "Generated from `cli/formats/documents.py`; tests compare it with what the commands print. "
        "With `--json` a command prints one document, or a list, on one line of stdout; `consume`, "
        "`log dump` and `pipeline run` print one document per line. Errors are documents on "
        "stderr.\n",
        f"This is version {VERSION}. A later release may add fields and documents without a new "
        "version, so ignore fields that you do not know. A field that is renamed, removed or gets "
        "another type is a new version, which the change log announces.\n",
        "Names: sizes end in `_bytes`, durations in `_seconds` or `_ms`, counts beside lists in "
        "`_count`; timestamps are Unix milliseconds, and other times ISO 8601 in UTC. What is "
        "unknown is null.\n",
    ]
    for each in DOCUMENTS:
        parts += [f"## {each.name}\n", f"{each.meaning}{_printed_by(each.printed_by)}\n"]
        parts += ["| field | type | meaning |", "|---|---|---|"]
        for field in each.fields:
            kind = f"{field.kind}, optional" if field.is_optional else field.kind
            parts.append(f"| `{field.name}` | {kind} | {field.meaning} |")
        parts.append("")
    parts += [
        "## Other commands\n",
        "`log dump`, `schema`, `table`, `config check` and `pipeline test`, `run` and `prepare` "
        "print documents of their own, under the same rules. Rules of `acl` and limits of `quota` "
        "are the same documents in `add` or `set`, `list` and `delete`.",
    ]
    return "\n".join(parts) + "\n"


def _printed_by(commands: tuple[str, ...]) -> str:
    if not commands:
        return ""
    shown = []
    for command in commands:
        kind, colon, name = command.rpartition(": ")
        words = {"list": "a list from ", "lines": "lines from "}.get(kind, "") if colon else ""
        shown.append(f"{words}`{name}`" if name != "every command" else name)
    return " Printed by " + ", ".join(shown) + "."


PAGES = {
    "cli.md": cli_page,
    "json.md": json_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "kafka-apis.md": kafka_apis_page,
    "metrics.md": metrics_page,
    "spark-options.md": spark_options_page,
}


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
