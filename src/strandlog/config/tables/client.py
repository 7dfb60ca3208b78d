"""What can be said to a client that talks to a cluster, under the names of Kafka's clients.

Both families of names are known: Java's and librdkafka's (`ALIASES`). Certificates and keys are PEM
files, or PEM text. What the table does not have cannot matter to a client that only moves batches,
and is ignored; except `PROTECTION`: whoever sets one of those counts on it, so it is refused.
"""

from __future__ import annotations

from strandlog.config.setting import MAX_INT, Setting, SettingTable

MIB = 1024 * 1024
PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"

ALIASES = {
    "sasl.mechanisms": "sasl.mechanism",
    "socket.timeout.ms": "request.timeout.ms",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "request.required.acks": "acks",
}

# A name that ends in a dot stands for all that begin so.
PROTECTION = {
    "sasl.kerberos.": "Kerberos is not spoken here; use SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN",
    "sasl.oauthbearer.": "OAuth is not spoken here; use SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN",
    "sasl.client.callback.handler.class": "Java classes cannot be run here",
    "sasl.login.": "Java classes cannot be run here; give sasl.username and sasl.password",
    "security.providers": "Java classes cannot be run here",
    "ssl.engine.factory.class": "Java classes cannot be run here",
    "ssl.cipher.suites": "the ciphers are those of Python's ssl module; leave it out",
    "ssl.enabled.protocols": "TLS 1.2 and later are used; leave it out",
    "ssl.crl.location": "lists of revoked certificates are not read here",
    "ssl.keystore.password": "give the certificates as PEM files, and ssl.key.password",
    "ssl.truststore.password": "give the certificates as PEM files, which have no password",
    "interceptor.classes": "Java classes cannot be run here",
    "transactional.id": "transactions are begun by whoever uses this client",
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


CLIENT_SETTINGS = SettingTable(
    (
        _text("client.id", "The name of this client in the broker's logs.", default="strandlog"),
        Setting(
            name="security.protocol",
            kind="choice",
            default=PLAINTEXT,
            choices=(PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL),
            help="Whether the connection is encrypted (SSL) and whether a user logs in (SASL).",
        ),
        Setting(
            name="sasl.mechanism",
            kind="choice",
            default="",
            choices=(PLAIN, SCRAM_SHA_256, SCRAM_SHA_512),
            help="How a user logs in; must be given when one does.",
        ),
        _text("sasl.username", "The user."),
        _text("sasl.password", "The user's password."),
        _text("sasl.jaas.config", "User and password as Java's clients have them."),
        _text("ssl.ca.location", "PEM file, or folder, of the authorities to trust."),
        _text("ssl.ca.pem", "PEM text of the authorities to trust."),
        _text("ssl.truststore.location", "PEM file of the authorities to trust; type PEM."),
        _text("ssl.truststore.certificates", "PEM text of the authorities to trust."),
        _text("ssl.truststore.type", "PEM.", default="PEM"),
        _text("ssl.certificate.location", "PEM file of this client's certificate."),
        _text("ssl.key.location", "PEM file of this client's key."),
        _text("ssl.certificate.pem", "PEM text of this client's certificate."),
        _text("ssl.key.pem", "PEM text of this client's key."),
        _text("ssl.keystore.location", "PEM file of this client's key and certificate; type PEM."),
        _text("ssl.keystore.certificate.chain", "PEM text of this client's certificate."),
        _text("ssl.keystore.key", "PEM text of this client's key."),
        _text("ssl.keystore.type", "PEM.", default="PEM"),
        _text("ssl.key.password", "What opens the key."),
        Setting(
            name="ssl.endpoint.identification.algorithm",
            kind="choice",
            default="https",
            choices=("https", "none", ""),
            help="https: the certificate must name the host. none or empty: any host will do.",
        ),
        Setting(
            name="enable.ssl.certificate.verification",
            kind="bool",
            default=True,
            help="false trusts every certificate: for tests alone.",
        ),
        _ms("request.timeout.ms", 30_000, "How long to wait for an answer.", 1),
        _ms("default.api.timeout.ms", 60_000, "How long to try again, all in all.", 1),
        _ms("delivery.timeout.ms", 120_000, "How long to try to deliver a batch.", 1),
        _ms("socket.connection.setup.timeout.ms", 10_000, "How long to wait to be connected.", 1),
        _ms("retry.backoff.ms", 100, "The first pause before a request is tried again."),
        _ms("retry.backoff.max.ms", 1000, "The longest pause before a request is tried again."),
        _ms("reconnect.backoff.ms", 50, "The first pause before a broker is connected to again."),
        _ms("reconnect.backoff.max.ms", 1000, "The longest pause before that."),
        _ms("metadata.max.age.ms", 300_000, "How long to believe who leads a partition."),
        Setting(
            name="isolation.level",
            kind="choice",
            default="read_committed",
            choices=("read_committed", "read_uncommitted"),
            help="Whether records of open and aborted transactions are seen.",
        ),
        _bytes("max.partition.fetch.bytes", 8 * MIB, "How much to ask for at once."),
        _bytes("fetch.min.bytes", 1, "Wait until there is so much."),
        _ms("fetch.max.wait.ms", 500, "But not longer than this."),
        _bytes("receive.buffer.bytes", -1, "Of the socket; -1 leaves it to the system.", -1),
        _bytes("send.buffer.bytes", -1, "Of the socket; -1 leaves it to the system.", -1),
        Setting(
            name="acks",
            kind="choice",
            default="all",
            choices=("all", "-1", "1"),
            help="all: a batch is acknowledged when it is safe. 1: when the leader has it.",
        ),
        Setting(
            name="max.in.flight.requests.per.connection",
            kind="int",
            default=5,
            minimum=1,
            maximum=5,
            help="How many Produce requests may be under way; a broker remembers five.",
        ),
        _bytes("max.request.size", 8 * MIB, "Batches of several partitions share so much."),
        _bytes("buffer.memory", 32 * MIB, "Bytes that may wait to be acknowledged."),
    )
)
