"""Parses simple `serve` command lines without typer, and starts the server.

Importing typer takes longer than starting the broker. `parse_plain` parses `serve [DATA]` with the
options in `PLAIN_OPTIONS` and `PLAIN_FLAGS`. For anything else (`--help`, another option or an
invalid value), it returns None, and `commands/serve.py` parses the command line with typer, which
prints help and usage errors.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from strandlog.cli.configuration import CONFIG_FILE_VARIABLE, is_pair, read_configuration
from strandlog.cli.file_limits import fit_to_limit, raise_limit, wanted
from strandlog.config.origin import Origin
from strandlog.config.resolve import Configuration, ResolvedSetting
from strandlog.config.setting import Setting, Value
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings, broker_settings
from strandlog.config.tables.server import (
    EVERY_HOST,
    LOOPBACK,
    MAX_PORT,
    NOT_EVERY_HOST,
    SERVER_SETTINGS,
    Address,
    Endpoint,
    ServerSettings,
)
from strandlog.errors import ConfigurationError, InvalidSettingError, MissingExtraError
from strandlog.storage.paths import META_PROPERTIES

if TYPE_CHECKING:
    from strandlog.server.listeners import ListenerConfig

logger = logging.getLogger(__name__)

TABLE_COMMAND = (sys.executable, "-m", "strandlog.tables.topics.worker")
INSECURE = "allow.insecure.listeners"


@dataclass
class ServeArguments:
    """The arguments of `serve`; None means not given."""

    data: str | None = None
    host: str | None = None
    port: int | None = None
    advertise: str | None = None
    config: str | None = None
    pairs: list[str] = field(default_factory=list)
    grpc_port: int | None = None
    no_grpc: bool = False
    http_port: int | None = None
    no_http: bool = False
    insecure: bool = False


def _plain_port(text: str) -> int:
    # A socket would silently treat 99999 as 34463.
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_PORT:
        raise ValueError(text)
    return int(text)


# Maps an option to the attribute of ServeArguments that it sets, and to the parser of its value.
PLAIN_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--host": ("host", str),
    "--port": ("port", _plain_port),
    "--grpc-port": ("grpc_port", _plain_port),
    "--http-port": ("http_port", _plain_port),
    "--advertise": ("advertise", str),
    "--config": ("config", str),
    "--set": ("pairs", str),
}
PLAIN_FLAGS = {"--no-grpc": "no_grpc", "--no-http": "no_http", "--insecure": "insecure"}


def parse_plain(words: Sequence[str]) -> ServeArguments | None:
    """Parse a simple command line; return None if typer must parse it."""
    arguments = ServeArguments(config=os.environ.get(CONFIG_FILE_VARIABLE) or None)
    rest = iter(words)
    has_data = False
    for word in rest:
        if not word.startswith("-"):
            if has_data or not word:
                return None
            arguments.data, has_data = word, True
            continue
        if word in PLAIN_FLAGS:
            setattr(arguments, PLAIN_FLAGS[word], True)
            continue
        flag, is_joined, value = word.partition("=")
        option = PLAIN_OPTIONS.get(flag)
        given = value if is_joined else next(rest, None)
        if option is None or given is None or (not is_joined and given.startswith("-")):
            return None
        name, read = option
        try:
            if name == "pairs":
                arguments.pairs.append(given)
            else:
                setattr(arguments, name, read(given))
        except ValueError:
            return None
    return arguments if all(map(is_pair, arguments.pairs)) else None


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise InvalidSettingError("--advertise", text, "expected HOST:PORT")
    if host.strip("[]") in EVERY_HOST:
        raise InvalidSettingError("--advertise", text, NOT_EVERY_HOST)
    return Address(host.strip("[]"), int(port))


def _print_ready(scheme: str, line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    http = next((word for word in line.split() if word.startswith("http=")), None)
    if http is not None and sys.stderr.isatty():
        address = http.removeprefix("http=")
        sys.stderr.write(f"console: {scheme}://{address}/ (press Ctrl-C to stop)\n")


def _fit_to_descriptors(settings: BrokerSettings) -> BrokerSettings:
    """Raise the soft limit on open files; lower the settings if they still exceed it."""
    allowed = raise_limit(settings)
    found = fit_to_limit(settings, allowed)
    if found is not settings:
        logger.warning(
            "the limit of %d file descriptors is below the %d that the settings need; lowered the "
            "settings to %d Kafka, %d HTTP and %d gRPC connections and %d open log files "
            "(see 'strandlog doctor')",
            allowed,
            wanted(settings),
            found.max_connections,
            found.http_max_connections,
            found.grpc_max_connections,
            found.log_max_open_files,
        )
    return found


def _settings(arguments: ServeArguments, server: ServerSettings) -> ServerSettings:
    """Return the server settings with the overrides from the command line."""
    return server._replace(
        kafka=_kafka(arguments, server),
        grpc=_side("grpc", server.grpc, arguments.grpc_port, arguments.no_grpc),
        http=_side("http", server.http, arguments.http_port, arguments.no_http),
    )


def _kafka(arguments: ServeArguments, server: ServerSettings) -> tuple[Endpoint, ...]:
    """Return the Kafka listeners; --host, --port and --advertise apply to the first one."""
    first, *others = server.kafka
    address, advertised = first.address, first.advertised
    if arguments.host is not None:
        address = address._replace(host=arguments.host)
    if arguments.port is not None:
        address = address._replace(port=arguments.port)
    if arguments.advertise is not None:
        advertised = _address(arguments.advertise)
    return (first._replace(address=address, advertised=advertised), *others)


def _side(
    label: str, configured: Endpoint | None, port: int | None, is_off: bool
) -> Endpoint | None:
    """Return the HTTP or gRPC listener, or None if it is disabled."""
    if is_off or (port is not None and port < 0):
        return None
    if port is None:
        return configured
    found = configured or Endpoint(label, label, Address(LOOPBACK, port))
    return found._replace(address=found.address._replace(port=port))


def _listeners(arguments: ServeArguments, server: ServerSettings) -> str | None:
    if arguments.host is None and arguments.port is None:
        return None
    return ",".join(map(str, _kafka(arguments, server)))


def _command_line_settings(
    arguments: ServeArguments, server: ServerSettings
) -> dict[str, ResolvedSetting]:
    """Return the settings that DATA and options other than --config and --set give; they take
    precedence over all others."""
    given: dict[str, tuple[Value | None, str]] = {
        "log.dirs": (arguments.data, "DATA"),
        "listeners": (_listeners(arguments, server), "--host, --port"),
        "advertised.listeners": (arguments.advertise, "--advertise"),
        "grpc.port": (-1, "--no-grpc")
        if arguments.no_grpc
        else (arguments.grpc_port, "--grpc-port"),
        "http.port": (-1, "--no-http")
        if arguments.no_http
        else (arguments.http_port, "--http-port"),
        INSECURE: (True if arguments.insecure else None, "--insecure"),
    }
    return {
        name: ResolvedSetting(_row(name), value, Origin("option", where))
        for name, (value, where) in given.items()
        if value is not None
    }


def _row(name: str) -> Setting:
    return SERVER_SETTINGS[name] if name in SERVER_SETTINGS else BROKER_SETTINGS[name]


def _set_level(server: ServerSettings) -> None:
    logging.getLogger().setLevel(server.logging_level.upper())


class JsonFormatter(logging.Formatter):
    """Formats each message as a JSON object on one line (`logging.format=json`)."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _set_format(server: ServerSettings) -> None:
    if server.logging_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def _reload(arguments: ServeArguments, started: Configuration) -> None:
    """Reload the settings on SIGHUP: apply the log level, and report other changes."""
    try:
        found = read_configuration(arguments.config, arguments.pairs)
        found.check()
    except ConfigurationError as error:
        logger.error("cannot reload the settings; keeping the old ones: %s", error)  # noqa: TRY400 - the message suffices
        return
    assert found.server is not None, "check() raises otherwise"
    _set_level(found.server)
    changed = sorted(
        name
        for name in {*found.chosen, *started.chosen} - {"logging.level"}
        if _value(found, name) != _value(started, name)
    )
    logger.info("read %s again; logging.level is %s", arguments.config, found.server.logging_level)
    if changed:
        logger.warning("restart the broker to apply: %s", ", ".join(changed))


def _value(configuration: Configuration, name: str) -> Value | None:
    found = configuration.chosen.get(name)
    return None if found is None else found.value


def serve(arguments: ServeArguments) -> None:
    """Run the broker until SIGTERM or SIGINT."""
    try:
        import uvloop  # noqa: PLC0415 - optional dependency

        from strandlog.server.app import ServerOptions, run_until_stopped  # noqa: PLC0415 - imports an optional dependency
        from strandlog.server.listeners import listener_configs  # noqa: PLC0415 - imports an optional dependency
        from strandlog.server.log_limit import limit_repeats  # noqa: PLC0415 - imports an optional dependency
    except ImportError as error:
        raise MissingExtraError("server", error.name or "uvloop") from error
    faulthandler.enable()  # print a stack trace on SIGBUS or a crash in native code
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    limit_repeats()
    configuration = read_configuration(arguments.config, arguments.pairs)
    configuration.check()
    assert configuration.server is not None, "check() raises otherwise"
    _set_format(configuration.server)
    for note in configuration.notes:
        logger.warning("%s", note)
    settings = configuration.broker_settings()
    if arguments.insecure:
        settings = broker_settings({**settings.explicit, INSECURE: True})
    settings = _fit_to_descriptors(settings)
    server = configuration.server
    _set_level(server)
    chosen = {**configuration.chosen, **_command_line_settings(arguments, server)}
    server = _settings(arguments, server)
    named = [name for name, each in chosen.items() if not each.is_default]
    options = ServerOptions(
        os.path.abspath(arguments.data or server.data),
        listener_configs(server, named, configuration.listener_overrides()),
        settings,
        http_hosts=server.http_hosts,
        chosen=chosen,
        table_command=TABLE_COMMAND,
    )

    if not os.path.lexists(os.path.join(options.data, META_PROPERTIES)):
        _check_addresses(options.listeners)
    scheme = "http" if server.http is None else server.http.protocol
    reload = partial(_reload, arguments, configuration) if arguments.config else None
    uvloop.run(run_until_stopped(options, partial(_print_ready, scheme), reload))


OTHER_ADDRESS = {
    "kafka": "--host or --port",
    "grpc": "--grpc-port, or use --no-grpc",
    "http": "--http-port, or use --no-http",
}


def _check_addresses(listeners: Sequence[ListenerConfig]) -> None:
    """Raise an error if the address of a required listener is in use, before the server creates
    its data folder.

    The server binds its addresses only after it has opened the folder, because clients that
    connected earlier would have to wait. An existing folder does not need this check.
    """
    for listener in listeners:
        if not listener.is_required or not listener.port:
            continue
        try:
            infos = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
            for family, _, _, _, address in dict.fromkeys(infos):
                socket.create_server(address[:2], family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(
                    error.errno,
                    f"cannot listen on {listener.address}: address already in use; stop the other "
                    f"process, or choose another {OTHER_ADDRESS[listener.name]}",
                ) from None
