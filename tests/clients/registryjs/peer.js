// Registers, encodes and decodes with @kafkajs/confluent-schema-registry; prints one JSON line per step.
//
//   node peer.js REGISTRY_URL SUBJECT_PREFIX

const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

const [url, prefix] = process.argv.slice(2);
const SCHEMAS = {
  [SchemaType.AVRO]: JSON.stringify({
    type: "record",
    name: "User",
    fields: [{ name: "name", type: "string" }],
  }),
  [SchemaType.JSON]: JSON.stringify({
    type: "object",
    properties: { name: { type: "string" } },
    required: ["name"],
  }),
  [SchemaType.PROTOBUF]: 'syntax = "proto3"; message User { string name = 1; }',
};

function print(row) {
  process.stdout.write(`${JSON.stringify(row)}\n`);
}

async function main() {
  const registry = new SchemaRegistry({ host: url });
  for (const [type, schema] of Object.entries(SCHEMAS)) {
    const subject = `${prefix}-${type.toLowerCase()}-value`;
    const { id } = await registry.register({ type, schema }, { subject });
    const again = await registry.register({ type, schema }, { subject });
    const encoded = await registry.encode(id, { name: "ada" });
    const other = new SchemaRegistry({ host: url }); // nothing is cached
    print({
      type,
      id,
      isStable: again.id === id,
      latest: await other.getLatestSchemaId(subject),
      first: await other.getRegistryId(subject, 1),
      encoded: encoded.toString("base64"),
      decoded: await other.decode(encoded),
    });
  }
  try {
    await registry.register(
      {
        type: SchemaType.AVRO,
        schema: JSON.stringify({
          type: "record",
          name: "User",
          fields: [{ name: "age", type: "int" }],
        }),
      },
      { subject: `${prefix}-avro-value` },
    );
    print({ incompatible: "accepted" });
  } catch (error) {
    print({ incompatible: error.status, message: error.message });
  }
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
