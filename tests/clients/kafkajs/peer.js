// kafkajs against a broker: `node peer.js STEP ADDRESS TOPIC`, with kafkajs on NODE_PATH.
// Each step prints what it saw as JSON, one object a line; test_kafkajs.py checks it.

const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require("kafkajs");

const [step, address, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], clientId: "peer", logLevel: logLevel.ERROR });
const BASE_MS = Date.now() - 1_000_000; // not long ago: older records may go at any time

const say = (what) => console.log(JSON.stringify(what));
const text = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString());

async function withProducer(settings, work) {
  const producer = kafka.producer(settings);
  await producer.connect();
  try {
    return await work(producer);
  } finally {
    await producer.disconnect();
  }
}

async function withAdmin(work) {
  const admin = kafka.admin();
  await admin.connect();
  try {
    return await work(admin);
  } finally {
    await admin.disconnect();
  }
}

// Reads until there are so many messages; onJoin is called before the first fetch.
async function read(count, settings, onJoin = () => {}) {
  const consumer = kafka.consumer({
    heartbeatInterval: 300, maxWaitTimeInMs: 200, ...settings,
  });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((resolve, reject) => {
    const patience = setTimeout(() => reject(new Error(`${found.length} of ${count}`)), 30_000);
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer.on(consumer.events.GROUP_JOIN, () => onJoin(consumer));
    consumer
      .run({
        eachMessage: async ({ partition, message }) => {
          found.push({ partition, ...message });
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

async function send(values, settings = {}) {
  const messages = values.map((value, number) => ({
    key: "k", value, timestamp: String(BASE_MS + number * 1000),
  }));
  return withProducer(settings, (producer) => producer.send({ topic, messages }));
}

const steps = {
  // Plain and packed, idempotent too; a null key, a null value, headers.
  async produce() {
    for (const [name, settings, compression] of [
      ["plain", {}, CompressionTypes.None],
      ["gzip", {}, CompressionTypes.GZIP],
      ["idempotent", { idempotent: true, maxInFlightRequests: 1 }, CompressionTypes.None],
    ]) {
      const messages = [...Array(100).keys()].map((n) => ({ key: "k", value: `${name} ${n}` }));
      const [sent] = await withProducer(settings, (producer) =>
        producer.send({ topic, messages, compression, acks: -1 }));
      say({ name, partition: sent.partition, baseOffset: sent.baseOffset });
    }
    await withProducer({}, (producer) => producer.send({
      topic,
      messages: [
        { value: "headers", headers: { a: ["1", "2"], b: Buffer.from([0, 255]) } },
        { key: "gone", value: null },
      ],
    }));
    const found = await read(302, { groupId: `g-${topic}` });
    say({ values: [0, 100, 200].map((at) => text(found[at].value)) });
    const { headers } = found[300];
    say({
      key: text(found[300].key),
      a: headers.a.map(text),
      b: [...headers.b],
      gone: [text(found[301].key), text(found[301].value)],
    });
  },

  // A group resumes where it stopped, seeks, pauses and resumes.
  async group() {
    const groupId = `g-${topic}`;
    await send([...Array(10).keys()].map(String));
    const first = await read(10, { groupId });
    await send(["10", "11"]);
    const second = await read(2, { groupId });
    say({ first: first.map((m) => text(m.value)), second: second.map((m) => text(m.value)) });
    const sought = await read(4, { groupId }, (consumer) =>
      consumer.seek({ topic, partition: 0, offset: "8" }));
    say({ sought: sought.map((m) => text(m.value)) });
    await send(["12"]);
    let resumed = false;
    let early = 0;
    const paused = await read(1, { groupId }, (consumer) => {
      consumer.pause([{ topic }]);
      consumer.on(consumer.events.START_BATCH_PROCESS, () => { early += resumed ? 0 : 1; });
      setTimeout(() => { resumed = true; consumer.resume([{ topic }]); }, 500);
    });
    say({ early, resumed: paused.map((m) => text(m.value)) });
  },

  async admin() {
    await withAdmin(async (admin) => {
      const created = await admin.createTopics({
        topics: [{ topic, numPartitions: 2, configEntries: [{ name: "retention.ms", value: "9000000" }] }],
      });
      const again = await admin.createTopics({ topics: [{ topic }] });
      say({ created, again });
      await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
      const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] });
      const cluster = await admin.describeCluster();
      say({
        partitions: described.partitions.length,
        leader: described.partitions[0].leader,
        brokers: cluster.brokers.map(({ host, port }) => `${host}:${port}`),
        listed: (await admin.listTopics()).includes(topic),
      });
      const { resources: [resource] } = await admin.describeConfigs({
        includeSynonyms: true,
        resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
      });
      const config = Object.fromEntries(resource.configEntries.map((e) => [e.configName, e]));
      say({
        retention: config["retention.ms"].configValue,
        retentionIsDefault: config["retention.ms"].isDefault,
        policy: config["cleanup.policy"].configValue,
        policyIsDefault: config["cleanup.policy"].isDefault,
      });
      await offsets(admin);
      await groups(admin);
      await admin.deleteTopics({ topics: [topic] });
      say({ gone: !(await admin.listTopics()).includes(topic) });
    });
  },

  // What was aborted is not seen, what was committed is, offsets move with it.
  async transactions() {
    const settings = { transactionalId: `id-${topic}`, idempotent: true, maxInFlightRequests: 1 };
    const groupId = `x-${topic}`;
    await withProducer(settings, async (producer) => {
      const aborted = await producer.transaction();
      await aborted.send({ topic, messages: [{ key: "k", value: "aborted" }] });
      await aborted.abort();
      const committed = await producer.transaction();
      await committed.send({ topic, messages: [{ key: "k", value: "committed" }] });
      await committed.sendOffsets({
        consumerGroupId: groupId,
        topics: [{ topic, partitions: [{ partition: 0, offset: "1" }] }],
      });
      await committed.commit();
    });
    const moved = await withAdmin((admin) => admin.fetchOffsets({ groupId, topics: [topic] }));
    say({ moved: moved[0].partitions.map(({ offset }) => offset) });
    const committed = await read(1, { groupId: `c-${topic}` });
    const all = await read(2, { groupId: `u-${topic}`, readUncommitted: true });
    say({ committed: committed.map((m) => text(m.value)), all: all.map((m) => text(m.value)) });
  },
};

async function offsets(admin) {
  const messages = [...Array(10).keys()].map((number) => ({
    partition: 0, value: "v", timestamp: String(BASE_MS + number * 1000),
  }));
  await withProducer({}, (producer) => producer.send({ topic, messages }));
  const [first] = (await admin.fetchTopicOffsets(topic)).filter((o) => o.partition === 0);
  const byTime = await admin.fetchTopicOffsetsByTimestamp(topic, BASE_MS + 4500);
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "3" }] });
  const [after] = (await admin.fetchTopicOffsets(topic)).filter((o) => o.partition === 0);
  say({
    low: first.low,
    high: first.high,
    byTime: byTime.find((o) => o.partition === 0).offset,
    lowAfterDeletion: after.low,
  });
}

async function groups(admin) {
  const groupId = `a-${topic}`;
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: "7" }] });
  const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] });
  const listed = (await admin.listGroups()).groups.map((group) => group.groupId);
  const { groups: [described] } = await admin.describeGroups([groupId]);
  await admin.deleteGroups([groupId]);
  say({
    committed: partitions.find((p) => p.partition === 0).offset,
    groupListed: listed.includes(groupId),
    state: described.state,
    groupGone: !(await admin.listGroups()).groups.some((group) => group.groupId === groupId),
  });
}

steps[step]().catch((error) => {
  console.error(error);
  process.exit(1);
});
