"""The `strandlog acl` commands: add, list, delete and check.

Rules have Kafka's form: a principal may, or may not, perform an operation on a resource from a
host. They apply to the clients of a broker that has authorizer.class.name=strandlog. With -d, the
commands open the folder as its owner, so they fail while a broker runs on it; use -b instead.

`check` uses the broker's own code. With -d, it takes super.users and the other settings from
--config, the environment and --set, as `serve` would. With -b, it reads the broker's rules and
settings, and prints a note for each setting that the broker does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.permission import PatternType, PermissionType, ResourceType
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    CommandLineValue,
    ConfigFile,
    DataDir,
    Json,
    SetOptions,
    Yes,
    ask,
    command_app,
    owned,
    read_configuration,
    target_of,
)
from strandlog.cli.output import message, print_json, print_table, printable
from strandlog.cli.security import access_check
from strandlog.cli.security.acl_options import (
    COLUMNS,
    Resources,
    cells,
    check_topic_names,
    checked_host,
    checked_operation,
    checked_principal,
    document,
    filters_of,
    notes_on_names,
    ordered,
    rules_of,
)
from strandlog.client.api import OpenLog
from strandlog.client.permissions import CONSUMER, OPTION_OF, PRODUCER, SPARK_SINK, SPARK_SOURCE
from strandlog.config.units import counted

app = command_app("Add, list, delete and check permissions (ACLs).")

DELETIONS_PER_REQUEST = 500  # fewer than a broker accepts by default

Principals = Annotated[
    list[str],
    typer.Option(
        "--principal", metavar="User:NAME", help="Principal; User:* means all users. Repeatable."
    ),
]
Operations = Annotated[
    list[str],
    typer.Option(
        "--operation",
        metavar="NAME",
        help="READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, "
        "CLUSTER_ACTION, IDEMPOTENT_WRITE or ALL. Repeatable.",
    ),
]
Topics = Annotated[
    list[str],
    typer.Option("--topic", metavar="NAME", help="Topic; '*' means all. Repeatable."),
]
Groups = Annotated[
    list[str],
    typer.Option("--group", metavar="NAME", help="Consumer group; '*' means all. Repeatable."),
]
TransactionalIds = Annotated[
    list[str],
    typer.Option(
        "--transactional-id", metavar="ID", help="Transactional id; '*' means all. Repeatable."
    ),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Prefix = Annotated[
    bool,
    typer.Option("--prefix", help="Treat the resource names as prefixes (pattern type PREFIXED)."),
]
Hosts = Annotated[
    list[str],
    typer.Option("--host", metavar="IP", help="IP address of the client. Repeatable."),
]
SparkSource = Annotated[
    bool,
    typer.Option(
        "--spark-source", help="Allow reading with Spark; needs --topic, and optionally --group."
    ),
]
SparkSink = Annotated[
    bool,
    typer.Option("--spark-sink", help="Allow writing exactly once with Spark; needs --topic."),
]
CommitTopic = Annotated[
    str | None,
    typer.Option(
        "--commit-topic",
        metavar="NAME",
        help="The sink's option commitTopic (default: strandlog.spark.commits).",
    ),
]


@app.command()
def add(
    principal: Principals,
    operation: Operations = [],  # noqa: B006 - typer passes a new list to every call
    topic: Topics = [],  # noqa: B006
    group: Groups = [],  # noqa: B006
    transactional_id: TransactionalIds = [],  # noqa: B006
    cluster: Cluster = False,
    prefix: Prefix = False,
    host: Hosts = [],  # noqa: B006
    deny: Annotated[
        bool, typer.Option("--deny", help="Deny instead of allow; a DENY overrides every ALLOW.")
    ] = False,
    producer: Annotated[
        bool,
        typer.Option(
            "--producer", help="Allow producing; needs --topic, and optionally --transactional-id."
        ),
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Allow consuming; needs --topic and --group.")
    ] = False,
    spark_source: SparkSource = False,
    spark_sink: SparkSink = False,
    commit_topic: CommitTopic = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Allow or deny operations on topics, groups, transactional ids or the cluster.

    Without --host, rules apply to clients on all hosts.
    """
    target = target_of(data, bootstrap, client, client_config)
    resources = Resources(topic, group, transactional_id, cluster, prefix)
    chosen = (
        (CONSUMER, consumer),
        (PRODUCER, producer),
        (SPARK_SOURCE, spark_source),
        (SPARK_SINK, spark_sink),
    )
    roles = [role for role, is_chosen in chosen if is_chosen]
    if roles and deny:
        options = " or ".join(role.option for role in roles)
        raise typer.BadParameter(f"cannot be combined with {options}", param_hint="--deny")
    check_topic_names(resources)
    permission = PermissionType.DENY if deny else PermissionType.ALLOW
    acls = rules_of(principal, operation, resources, host, permission, roles, commit_topic)
    with owned(target, create=True) as log:
        log.create_acls(acls)
    if as_json:
        print_json({"added": [document(acl) for acl in acls]})
    else:
        print_table(COLUMNS, cells(acls))
        message(f"added {counted(len(acls), 'rule')}")
    for note in notes_on_names(resources):
        message(f"note: {note}")


@app.command("list")
def list_acls(
    principal: Principals = [],  # noqa: B006
    operation: Operations = [],  # noqa: B006
    topic: Topics = [],  # noqa: B006
    group: Groups = [],  # noqa: B006
    transactional_id: TransactionalIds = [],  # noqa: B006
    cluster: Cluster = False,
    prefix: Prefix = False,
    host: Hosts = [],  # noqa: B006
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List rules.

    `--topic orders` selects all rules that affect the topic: those for its exact name, for a prefix
    of its name, and for '*'. With --prefix, it selects the rules for exactly that prefix.
    """
    resources = Resources(topic, group, transactional_id, cluster, prefix)
    every = PermissionType.ANY
    filters = filters_of(principal, operation, resources, host, every, PatternType.MATCH)
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        acls = _selected(log, filters)
    if as_json:
        print_json([document(acl) for acl in ordered(acls)])
        return
    print_table(COLUMNS, cells(acls))
    if not acls:
        message("no rules")


def _selected(log: OpenLog, filters: Sequence[AclFilter]) -> list[Acl]:
    return list(dict.fromkeys(acl for each in filters for acl in log.acls(each)))


@app.command()
def delete(
    principal: Principals = [],  # noqa: B006
    operation: Operations = [],  # noqa: B006
    topic: Topics = [],  # noqa: B006
    group: Groups = [],  # noqa: B006
    transactional_id: TransactionalIds = [],  # noqa: B006
    cluster: Cluster = False,
    prefix: Prefix = False,
    host: Hosts = [],  # noqa: B006
    deny: Annotated[bool, typer.Option("--deny", help="Select only DENY rules.")] = False,
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show the rules that match all given options, and delete them after confirmation (or --yes).

    `--topic orders` selects the rules for exactly this name; with --prefix, those for exactly this
    prefix.
    """
    resources = Resources(topic, group, transactional_id, cluster, prefix)
    if not (principal or operation or host or resources.named()):
        raise typer.BadParameter(
            "nothing selected: pass --principal, --operation, --host or a resource"
        )
    permission = PermissionType.DENY if deny else PermissionType.ANY
    filters = filters_of(principal, operation, resources, host, permission, PatternType.LITERAL)
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        acls = _selected(log, filters)
        if acls:
            if not as_json:
                print_table(COLUMNS, cells(acls))
            ask(f"Delete {counted(len(acls), 'rule')}?", yes=yes, as_json=as_json)
        for first in range(0, len(acls), DELETIONS_PER_REQUEST):
            log.delete_acls(acls[first : first + DELETIONS_PER_REQUEST])
    if as_json:
        print_json({"deleted": [document(acl) for acl in ordered(acls)]})
    else:
        message(f"deleted {counted(len(acls), 'rule')}" if acls else "no rules match")


@app.command()
def check(
    principal: Annotated[
        str, typer.Option("--principal", metavar="User:NAME", help="Principal of the client.")
    ],
    operation: Annotated[
        str, typer.Option("--operation", metavar="NAME", help="Operation, such as READ.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Topic.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Consumer group.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", metavar="ID", help="Transactional id.")
    ] = None,
    cluster: Cluster = False,
    host: Annotated[
        str, typer.Option("--host", metavar="IP", help="IP address of the client.")
    ] = "127.0.0.1",
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    config: ConfigFile = None,
    given: SetOptions = None,
    as_json: Json = False,
) -> None:
    """Explain whether a client may perform an operation, and which rule decides.

    The exit code is 0 if the operation is allowed, and 1 if it is denied. With -d, super.users and
    other settings come from --config, the environment and --set, as for `serve`; with -b, from the
    broker.
    """
    target = target_of(data, bootstrap, client, client_config)
    if target.data is None and (given or isinstance(config, CommandLineValue)):
        raise typer.BadParameter(
            "only with -d: a broker has its own settings", param_hint="--config and --set"
        )
    question = _question(principal, operation, (topic, group, transactional_id, cluster), host)
    if target.data is not None:
        settings = read_configuration(config, given).broker_settings()
        answer = access_check.of_folder(target.data, settings, question)
    else:
        with owned(target) as log:
            answer = access_check.of_broker(log, question)
    if as_json:
        rule = answer.decision.rule
        print_json(
            {
                "allowed": answer.decision.is_allowed,
                "reason": answer.decision.reason,
                "rule": None if rule is None else document(rule),
                "notes": answer.notes,
            }
        )
    else:
        _print_answer(question, answer)
    if not answer.decision.is_allowed:
        raise typer.Exit(1)


def _question(
    principal: str,
    operation: str,
    resource: tuple[str | None, str | None, str | None, bool],
    host: str,
) -> access_check.Question:
    topic, group, transactional_id, cluster = resource
    topics, groups, ids = (
        [] if name is None else [name] for name in (topic, group, transactional_id)
    )
    named = Resources(topics, groups, ids, cluster, prefix=False).named()
    if len(named) != 1:
        options = ", ".join(OPTION_OF.values())
        raise typer.BadParameter(f"give exactly one resource: one of {options}")
    if operation.upper() == "ALL":
        raise typer.BadParameter("name one operation, not ALL", param_hint="--operation")
    kind, name = named[0]
    return access_check.Question(
        checked_principal(principal),
        checked_host(host),
        checked_operation(operation, kind),
        kind,
        name,
    )


def _print_answer(question: access_check.Question, answer: access_check.Answer) -> None:
    decision = answer.decision
    where = "the cluster"
    if question.kind is not ResourceType.CLUSTER:
        where = f"{question.kind.name} {question.name}"
    verdict = "allowed" if decision.is_allowed else "denied"
    typer.echo(
        f"{verdict}: {question.principal} from {question.host}, "
        f"{question.operation.name} on {where}"
    )
    rule = f": {printable(str(decision.rule))}" if decision.rule is not None else ""
    typer.echo(f"reason: {decision.reason}{rule}")
    for note in answer.notes:
        message(f"note: {note}")
    if not decision.is_allowed and decision.rule is None:
        message(f"to allow it: {access_check.remedy(question)}")
