"""Settings for remote clients, with the names that Kafka's clients use.

Some names differ between the Java client and librdkafka. `ALIASES` maps names that are not in the
table to names that are, and client/settings.py translates the Java settings that have no single
equivalent (`JAVA_ONLY`). Certificates and keys are PEM files or PEM text. The wire client rejects
the settings in `SECURITY`, because ignoring most of them would weaken security. It ignores other
settings that are not in the table, because they have no effect on a client that only transfers
batches.
"""

from __future__ import annotations

from strandlog.config.setting import MAX_INT, Setting, SettingTable

MIB = 1024 * 1024
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"

ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "socket.timeout.ms": "request.timeout.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "request.required.acks": "acks",
}
# Maps Java client settings that have no single equivalent to the settings that they set.
JAVA_ONLY = {
    "sasl.jaas.config": "`sasl.username` and `sasl.password`",
    "ssl.keystore.location": "`ssl.certificate.location` and `ssl.key.location`: one PEM file",
    "ssl.keystore.type": "nothing: must be PEM",
    "ssl.truststore.type": "nothing: must be PEM",
}

# A name that ends with a dot matches all names with that prefix.
SECURITY = {
    "sasl.kerberos.": "Kerberos is not supported; use SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN",
    "sasl.oauthbearer.": "set sasl.oauthbearer.token, for example to ${file:PATH}, and let another "
    "program renew the token",
    "sasl.client.callback.handler.class": "Java classes are not supported",
    "sasl.login.": "Java classes are not supported; set sasl.username and sasl.password",
    "security.providers": "Java classes are not supported",
    "ssl.engine.factory.class": "Java classes are not supported",
    "ssl.cipher.suites": "Python's ssl module chooses the ciphers; remove the option",
    "ssl.enabled.protocols": "TLS 1.2 and later are used; remove the option",
    "ssl.crl.location": "certificate revocation lists are not supported",
    "ssl.keystore.password": "use PEM files and ssl.key.password",
    "ssl.truststore.password": "use PEM files, which have no password",
    "interceptor.classes": "Java classes are not supported",
    "transactional.id": "the program passes the transactional id itself; remove the option",
}


def _ms(name: str, default: int, text: str, minimum: int = 0) -> Setting:
    return Setting(
        name=name, kind="ms", default=default, minimum=minimum, maximum=MAX_INT, help=text
    )


def _bytes(name: str, default: int, text: str, minimum: int = 1) -> Setting:
    return Setting(
        name=name, kind="bytes", default=default, minimum=minimum, maximum=MAX_INT, help=text
    )


def _text(name: str, text: str, default: str = "") -> Setting:
    return Setting(name=name, kind="text", default=default, help=text)


def _secret(name: str, text: str) -> Setting:
    return Setting(name=name, kind="text", default="", is_secret=True, help=text)


CLIENT_SETTINGS = SettingTable(
    (
        _text(
            "client.id", "Name of this client in the broker's logs and quotas.", default="strandlog"
        ),
        _text(
            "schema.registry.url",
            "URL of the schema registry (http://HOST:PORT); by default, the broker's registry.",
        ),
        Setting(
            name="security.protocol",
            kind="choice",
            default=PLAINTEXT,
            choices=(PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL),
            help="Encryption (SSL) and authentication (SASL) of the connection.",
        ),
        Setting(
            name="sasl.mechanism",
            kind="choice",
            default="",
            choices=(PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER),
            help="SASL mechanism; required with SASL.",
        ),
        _text("sasl.username", "User name."),
        _secret("sasl.password", "Password."),
        _secret(
            "sasl.oauthbearer.token",
            "Bearer token for OAUTHBEARER; a reference is resolved again for each login. In "
            "Python, this may also be a function that returns the token.",
        ),
        _text(
            "ssl.ca.location",
            "PEM file or folder with trusted CA certificates; by default, the system's CAs.",
        ),
        _text("ssl.ca.pem", "PEM text with trusted CA certificates."),
        _text("ssl.certificate.location", "PEM file of this client's certificate."),
        _text("ssl.key.location", "PEM file of this client's key."),
        _text("ssl.certificate.pem", "PEM text of this client's certificate."),
        _secret("ssl.key.pem", "PEM text of this client's key."),
        _secret("ssl.key.password", "Password of this client's key."),
        Setting(
            name="ssl.endpoint.identification.algorithm",
            kind="choice",
            default="https",
            choices=("https", "none", ""),
            help="https: the certificate must match the host name. none or empty: no check.",
        ),
        Setting(
            name="enable.ssl.certificate.verification",
            kind="bool",
            default=True,
            help="false: accept any certificate; use only for tests.",
        ),
        _ms("request.timeout.ms", 30_000, "Request timeout.", 1),
        _ms("default.api.timeout.ms", 60_000, "Maximum time for a call, including retries.", 1),
        _ms(
            "delivery.timeout.ms", 120_000, "Maximum time to deliver a batch, including retries.", 1
        ),
        _ms("socket.connection.setup.timeout.ms", 10_000, "Timeout for connecting.", 1),
        _ms("retry.backoff.ms", 100, "Initial back-off before a retry."),
        _ms("retry.backoff.max.ms", 1000, "Maximum back-off before a retry."),
        _ms("reconnect.backoff.ms", 50, "Initial back-off before reconnecting to a broker."),
        _ms("reconnect.backoff.max.ms", 1000, "Maximum back-off before reconnecting to a broker."),
        _ms("metadata.max.age.ms", 300_000, "Time after which metadata is refreshed."),
        Setting(
            name="isolation.level",
            kind="choice",
            default="read_committed",
            choices=("read_committed", "read_uncommitted"),
            help="read_committed: do not return records of open or aborted transactions.",
        ),
        _bytes("max.partition.fetch.bytes", 8 * MIB, "Maximum bytes per partition in a fetch."),
        _bytes("fetch.min.bytes", 1, "Minimum bytes per fetch."),
        _ms("fetch.max.wait.ms", 500, "Maximum time to wait for fetch.min.bytes."),
        _bytes(
            "receive.buffer.bytes", -1, "Socket receive buffer; -1 means the system default.", -1
        ),
        _bytes("send.buffer.bytes", -1, "Socket send buffer; -1 means the system default.", -1),
        Setting(
            name="acks",
            kind="choice",
            default="all",
            choices=("all", "-1", "1"),
            help="all: wait until a batch is durable. 1: wait until the leader has written it.",
        ),
        Setting(
            name="max.in.flight.requests.per.connection",
            kind="int",
            default=5,
            minimum=1,
            maximum=5,
            help="Maximum Produce requests in flight; a broker tracks 5 batches per producer.",
        ),
        _bytes("max.request.size", 8 * MIB, "Maximum size of a Produce request."),
        _bytes("buffer.memory", 32 * MIB, "Maximum memory for unacknowledged batches."),
    )
)
