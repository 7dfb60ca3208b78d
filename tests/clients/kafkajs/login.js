// kafkajs with a login: `node login.js STEP SETTINGS TOPIC`, with kafkajs on NODE_PATH.
// Each step prints what it saw as JSON, one object a line; test_logins.py checks it.

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const [step, file, topic] = process.argv.slice(2);
const settings = JSON.parse(fs.readFileSync(file, "utf8"));
const kafka = new Kafka({ clientId: "peer", logLevel: logLevel.NOTHING, ...settings });
const COUNT = 50;

const say = (what) => console.log(JSON.stringify(what));

async function read(count) {
  const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 200 });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((resolve, reject) => {
    const patience = setTimeout(() => reject(new Error(`${found.length} of ${count}`)), 30_000);
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        eachMessage: async ({ message }) => {
          found.push(message.value.toString());
          if (found.length === count) {
            clearTimeout(patience);
            resolve();
          }
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
  return found;
}

const steps = {
  async produce() {
    const producer = kafka.producer();
    await producer.connect();
    const messages = Array.from({ length: COUNT }, (_, number) => ({ value: `value ${number}` }));
    await producer.send({ topic, messages });
    await producer.disconnect();
    say({ read: (await read(COUNT)).length });
  },

  // One record at a time until the test creates a file.
  async steady() {
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    let sent = 0;
    while (!fs.existsSync(settings.stop)) {
      await producer.send({ topic, acks: -1, messages: [{ value: String(sent) }] });
      sent += 1;
    }
    await producer.disconnect();
    const found = await read(sent);
    say({ sent, read: found.length, same: found.every((value, at) => value === String(at)) });
  },

  async fail() {
    const admin = kafka.admin();
    try {
      await admin.connect();
      say({ error: null });
    } catch (error) {
      say({ error: error.name });
    }
  },
};

steps[step]().catch((error) => {
  console.error(error);
  process.exit(1);
});
