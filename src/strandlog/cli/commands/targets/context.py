"""The `strandlog context` commands: set, use, list, show and delete.

strandlog context set prod -b broker.example:9093 -X security.protocol=SASL_SSL …
strandlog context use prod
strandlog topic list                    # on broker.example, with these settings
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from strandlog.cli.completion import complete_context
from strandlog.cli.contexts import (
    VARIABLE,
    Context,
    Contexts,
    contexts_path,
    read_contexts,
    write_contexts,
)
from strandlog.cli.options import (
    ClientSettings,
    Json,
    command_app,
    settings_of,
)
from strandlog.cli.output import message, print_json, print_table, text
from strandlog.client.addresses import parse_bootstrap

app = command_app("Save addresses and client settings under a name, and choose one.")


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Context name.", autocompletion=complete_context)
]
Address = Annotated[
    str | None, typer.Option("-b", "--bootstrap", metavar="HOST:PORT", help="Address of a broker.")
]
Folder = Annotated[str | None, typer.Option("-d", "--data", metavar="DIR", help="Data folder.")]


@app.command("set")
def set_context(
    name: Name,
    bootstrap: Address = None,
    data: Folder = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    as_json: Json = False,
) -> None:
    """Create or replace a context. Passwords and keys must be references, such as ${env:NAME}."""
    if (bootstrap is None) == (data is None):
        raise typer.BadParameter("pass either -b HOST:PORT or -d DIR")
    if data is not None and client:
        raise typer.BadParameter(
            "only valid with a broker: use -b HOST:PORT instead of -d", param_hint="-X"
        )
    if bootstrap is not None:
        parse_bootstrap(bootstrap)
    config = {key: value or "" for key, value in settings_of(client, "-X").items()}
    folder = None if data is None else os.path.abspath(data)
    context = Context(name, bootstrap, folder, config).checked()
    contexts = _read()
    _write(contexts._replace(by_name={**contexts.by_name, name: context}))
    hint = "" if name == contexts.current else f"; choose it with: strandlog context use {name}"
    _report(context, contexts, f"set context {name}{hint}", as_json=as_json)


@app.command()
def use(name: Name, as_json: Json = False) -> None:
    """Choose the context that commands without -d or -b use."""
    contexts = _read()
    context = contexts.get(name)
    contexts = contexts._replace(current=name)
    _write(contexts)
    _report(context, contexts, f"using {name}: {_address(context)}", as_json=as_json)
    if os.environ.get(VARIABLE) not in (None, "", name):
        message(f"note: {VARIABLE} is set to {os.environ[VARIABLE]} and takes precedence")


@app.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List all contexts."""
    contexts = _read()
    if as_json:
        print_json([_document(each, contexts) for each in contexts.by_name.values()])
        return
    rows = [
        ["*" if each.name == contexts.current else "", each.name, _address(each)]
        for each in contexts.by_name.values()
    ]
    print_table([text(""), text("NAME"), text("ADDRESS")], rows)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Context name; default: the current one.",
            autocompletion=complete_context,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the address and the client settings of a context."""
    contexts = _read()
    chosen = name or os.environ.get(VARIABLE) or contexts.current
    if chosen is None:
        raise typer.BadParameter("there is no current context: pass NAME")
    context = contexts.get(chosen)
    if as_json:
        print_json(_document(context, contexts))
        return
    rows = [["address", _address(context)], *(list(pair) for pair in context.config.items())]
    print_table([text("NAME"), text("VALUE")], rows, context.name)


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a context; the broker or folder is not affected."""
    contexts = _read()
    contexts.get(name)
    others = {key: each for key, each in contexts.by_name.items() if key != name}
    _write(Contexts(None if contexts.current == name else contexts.current, others))
    if as_json:
        print_json({"deleted": [name]})
    else:
        message(f"deleted context {name}")


def _path() -> Path:
    return contexts_path(os.environ)


def _read() -> Contexts:
    return read_contexts(_path())


def _write(contexts: Contexts) -> None:
    write_contexts(_path(), contexts)


def _address(context: Context) -> str:
    return context.bootstrap or context.data or ""


def _document(context: Context, contexts: Contexts) -> dict[str, Any]:
    """Return the JSON document of a context (formats/documents.py)."""
    return {
        "name": context.name,
        "current": context.name == contexts.current,
        "bootstrap": context.bootstrap,
        "data": context.data,
        "config": context.config,
    }


def _report(context: Context, contexts: Contexts, line: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(context, contexts))
    else:
        message(line)
