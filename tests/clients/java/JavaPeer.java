// Kafka's own Java client against a broker: `java -cp JARS JavaPeer.java STEP ADDRESS TOPIC`.
// Each step prints what it saw as JSON, one object a line; test_java.py checks it.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaPeer {
    // Not long ago: what is older than the retention may go at any time.
    private static final long BASE_MS = System.currentTimeMillis() - 1_000_000;
    private static final long PATIENCE_MS = 30_000;

    private final String address;
    private final String topic;

    JavaPeer(String address, String topic) {
        this.address = address;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        JavaPeer peer = new JavaPeer(arguments[1], arguments[2]);
        switch (arguments[0]) {
            case "produce" -> peer.produce();
            case "group" -> peer.group();
            case "rebalance" -> peer.rebalance();
            case "admin" -> peer.admin();
            case "transactions" -> peer.transactions();
            case "corners" -> peer.corners();
            default -> throw new IllegalArgumentException("no step " + arguments[0]);
        }
    }

    // -- steps ------------------------------------------------------------------------------------

    /** Every codec, with the default settings, so idempotent; a null key, a null value, headers. */
    private void produce() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = producer("compression.type", codec)) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int number = 0; number < 100; number++) {
                    String value = codec + " " + number;
                    sent.add(producer.send(new ProducerRecord<>(topic, 0, BASE_MS, "k", value)));
                }
                say("codec", codec, "first", sent.get(0).get().offset(),
                    "last", sent.get(99).get().offset());
            }
        }
        try (KafkaProducer<String, String> producer = producer()) {
            ProducerRecord<String, String> keyless = new ProducerRecord<>(topic, null, "headers");
            keyless.headers().add("a", "1".getBytes(StandardCharsets.UTF_8)).add("a", null);
            producer.send(keyless).get();
            producer.send(new ProducerRecord<>(topic, "gone", null)).get();
        }
        try (KafkaConsumer<String, String> consumer = consumer(null)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seekToBeginning(consumer.assignment());
            List<ConsumerRecord<String, String>> found = take(consumer, 502);
            for (int at = 0; at < 500; at += 100) {
                say("value", found.get(at).value(), "age", found.get(at).timestamp() - BASE_MS);
            }
            for (ConsumerRecord<String, String> record : found.subList(500, 502)) {
                List<Object> headers = new ArrayList<>();
                for (Header header : record.headers()) {
                    headers.add(header.key());
                    headers.add(header.value() == null
                        ? null : new String(header.value(), StandardCharsets.UTF_8));
                }
                say("key", record.key(), "value", record.value(), "headers", headers);
            }
        }
    }

    /** A group reads, commits with metadata and resumes; pause, resume, seek by time. */
    private void group() throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int number = 0; number < 20; number++) {
                long timestamp = BASE_MS + number * 1000L;
                producer.send(new ProducerRecord<>(topic, 0, timestamp, null, "" + number)).get();
            }
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer("g-" + topic)) {
            consumer.subscribe(List.of(topic));
            say("read", values(take(consumer, 5)));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(5, "five")));
            consumer.seek(partition, 5);
            consumer.pause(List.of(partition));
            int whilePaused = consumer.poll(Duration.ofMillis(300)).count();
            consumer.resume(List.of(partition));
            say("paused", whilePaused, "resumed", values(take(consumer, 1)));
        }
        try (KafkaConsumer<String, String> consumer = consumer("g-" + topic)) {
            consumer.subscribe(List.of(topic));
            say("went on", values(take(consumer, 15)));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            say("committed", committed.offset(), "metadata", committed.metadata());
            say("by time",
                consumer.offsetsForTimes(Map.of(partition, BASE_MS + 6500)).get(partition).offset(),
                "beginning", consumer.beginningOffsets(Set.of(partition)).get(partition),
                "end", consumer.endOffsets(Set.of(partition)).get(partition));
        }
    }

    /** A second member joins with every assignor that moves partitions, and leaves again. */
    private void rebalance() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, 4, (short) 1))).all().get();
        }
        for (String assignor : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
            String[] more = {
                "partition.assignment.strategy",
                "org.apache.kafka.clients.consumer." + assignor + "Assignor",
                "heartbeat.interval.ms", "300", "session.timeout.ms", "3000",
            };
            List<Integer> shares = new ArrayList<>();
            try (KafkaConsumer<String, String> first = consumer("r-" + assignor + topic, more)) {
                first.subscribe(List.of(topic));
                shares.add(settle(4, first));
                try (KafkaConsumer<String, String> second =
                        consumer("r-" + assignor + topic, more)) {
                    second.subscribe(List.of(topic));
                    shares.add(settle(2, first, second));
                }
                shares.add(settle(4, first));
            }
            say("assignor", assignor, "shares", shares);
        }
    }

    private void admin() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1);
            admin.createTopics(List.of(wanted.configs(Map.of("retention.ms", "1000000"))))
                .all().get();
            say("twice", failure(admin.createTopics(List.of(wanted)).all()));
            say("nodes", admin.describeCluster().nodes().get().size(),
                "controller", admin.describeCluster().controller().get().id(),
                "cluster", admin.describeCluster().clusterId().get());
            TopicDescription described =
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            say("partitions", described.partitions().size(),
                "leader", described.partitions().get(0).leader().id(),
                "listed", admin.listTopics().names().get().contains(topic));
            say("missing", failure(admin.describeTopics(List.of("missing")).allTopicNames()));
            settingsOfTopics(admin);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            say("grown", admin.describeTopics(List.of(topic)).allTopicNames().get()
                .get(topic).partitions().size());
            offsets(admin);
            groups(admin);
            logDirs(admin);
            admin.deleteTopics(List.of(topic)).all().get();
            say("deleted", !admin.listTopics().names().get().contains(topic));
        }
    }

    private void settingsOfTopics(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config before = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(
                new ConfigEntry("segment.bytes", "2097152"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(
                new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)
        ))).all().get();
        Config after = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        say("before", before.get("retention.ms").value(),
            "source", before.get("retention.ms").source(),
            "after", after.get("retention.ms").value(),
            "default", after.get("retention.ms").isDefault(),
            "segment", after.get("segment.bytes").value(),
            "policy", after.get("cleanup.policy").value());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "0");
        say("broker settings",
            admin.describeConfigs(List.of(broker)).all().get().get(broker).entries().size());
    }

    private void offsets(Admin admin) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int number = 0; number < 10; number++) {
                long timestamp = BASE_MS + (number == 4 ? 100_000 : number * 1000L);
                producer.send(new ProducerRecord<>(topic, 0, timestamp, "k", "v")).get();
            }
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        List<Object> found = new ArrayList<>();
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(),
                OffsetSpec.maxTimestamp(), OffsetSpec.forTimestamp(BASE_MS + 2500))) {
            found.add(admin.listOffsets(Map.of(partition, spec)).all().get()
                .get(partition).offset());
        }
        say("offsets", found);
        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3))).all().get();
        say("start", admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all().get()
            .get(partition).offset());
    }

    private void groups(Admin admin) throws Exception {
        String group = "a-" + topic;
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            take(consumer, 3);
            consumer.commitSync();
            var described =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            say("state", described.groupState(), "members", described.members().size(),
                "assigned", described.members().iterator().next().assignment()
                    .topicPartitions().size());
            say("while it lives",
                failure(admin.deleteConsumerGroups(List.of(group)).all()));
        }
        Set<String> listed = new TreeSet<>();
        admin.listGroups().all().get().forEach(each -> listed.add(each.groupId()));
        admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(7)))
            .all().get();
        long altered = admin.listConsumerGroupOffsets(
            Map.of(group, new ListConsumerGroupOffsetsSpec())).all().get()
            .get(group).get(partition).offset();
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        int left = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            .containsKey(partition) ? 1 : 0;
        admin.deleteConsumerGroups(List.of(group)).all().get();
        say("listed", listed.contains(group), "altered", altered, "left", left);
    }

    private void logDirs(Admin admin) throws Exception {
        var folder = admin.describeLogDirs(List.of(0)).allDescriptions().get().get(0)
            .values().iterator().next();
        int logs = 0;
        long bytes = 0;
        for (var replica : folder.replicaInfos().entrySet()) {
            if (replica.getKey().topic().equals(topic)) {
                logs += 1;
                bytes += replica.getValue().size();
            }
        }
        say("logs", logs, "written", bytes > 0);
    }

    /** A committed transaction with offsets, and an aborted one that stays invisible. */
    private void transactions() throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer =
                producer("transactional.id", "id-" + topic)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "aborted"));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "committed"));
            producer.commitTransaction();
            say("ends", "committed");
        }
        try (KafkaConsumer<String, String> consumer =
                consumer(null, "isolation.level", "read_committed")) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            say("read committed", values(take(consumer, 1)),
                "end", consumer.endOffsets(Set.of(partition)).get(partition));
        }
        try (KafkaConsumer<String, String> consumer = consumer(null)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            say("read uncommitted", values(take(consumer, 2)));
        }
        moveOffsetsInATransaction();
    }

    private void moveOffsetsInATransaction() throws Exception {
        String group = "x-" + topic;
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> first = producer("transactional.id", "f-" + topic);
                KafkaProducer<String, String> second = producer("transactional.id", "f-" + topic);
                KafkaConsumer<String, String> consumer =
                    consumer(group, "isolation.level", "read_committed")) {
            first.initTransactions();
            consumer.subscribe(List.of(topic));
            ConsumerRecord<String, String> read = take(consumer, 1).get(0);
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic + "-out", read.value() + " again"));
            first.sendOffsetsToTransaction(
                Map.of(partition, new OffsetAndMetadata(read.offset() + 1)),
                consumer.groupMetadata());
            first.commitTransaction();
            say("moved to", consumer.committed(Set.of(partition)).get(partition).offset(),
                "from", read.offset());
            second.initTransactions();
            first.beginTransaction();
            String fenced = "not at all";
            try {
                first.send(new ProducerRecord<>(topic + "-out", "from a zombie")).get();
                first.commitTransaction();
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                fenced = cause.getClass().getSimpleName();
            }
            say("fenced", fenced);
        }
    }

    /** Where brokers differ: tiny fetches, recreated topics, rejected timestamps and keys. */
    private void corners() throws Exception {
        try (Admin admin = Admin.create(settings());
                KafkaProducer<String, String> producer = producer()) {
            tinyFetches(admin, producer);
            madeAnew(admin, producer);
            refusals(admin, producer);
        }
    }

    private void tinyFetches(Admin admin, KafkaProducer<String, String> producer)
            throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 10, (short) 1))).all().get();
        for (int number = 0; number < 100; number++) {
            producer.send(new ProducerRecord<>(topic, number % 10, "k", "a value " + number));
        }
        producer.flush();
        String[] tiny = {"fetch.max.bytes", "100", "max.partition.fetch.bytes", "10"};
        try (KafkaConsumer<String, String> consumer = consumer("t-" + topic, tiny)) {
            consumer.subscribe(List.of(topic));
            say("by tiny fetches", Set.copyOf(values(take(consumer, 100))).size());
        }
    }

    private void madeAnew(Admin admin, KafkaProducer<String, String> producer) throws Exception {
        String name = topic + "-anew";
        NewTopic wanted = new NewTopic(name, 1, (short) 1);
        admin.createTopics(List.of(wanted)).all().get();
        try (KafkaConsumer<String, String> consumer =
                consumer("n-" + topic, "metadata.max.age.ms", "1000")) {
            consumer.subscribe(List.of(name));
            for (int number = 0; number < 3; number++) {
                producer.send(new ProducerRecord<>(name, "k", "" + number)).get();
            }
            List<Object> before = values(take(consumer, 3));
            admin.deleteTopics(List.of(name)).all().get();
            admin.createTopics(List.of(wanted)).all().get();
            long offset = producer.send(new ProducerRecord<>(name, "k", "anew")).get().offset();
            say("before", before, "offset", offset, "then", values(take(consumer, 1)));
        }
    }

    private void refusals(Admin admin, KafkaProducer<String, String> producer) throws Exception {
        String compacted = topic + "-compacted";
        String stamped = topic + "-stamped";
        admin.createTopics(List.of(
            new NewTopic(compacted, 1, (short) 1).configs(Map.of("cleanup.policy", "compact")),
            new NewTopic(stamped, 1, (short) 1).configs(
                Map.of("message.timestamp.type", "LogAppendTime")))).all().get();
        long tooLate = System.currentTimeMillis() + 100_000_000L;
        say("no key", failure(producer.send(new ProducerRecord<>(compacted, null, "v"))),
            "future", failure(producer.send(new ProducerRecord<>(compacted, 0, tooLate, "k", "v"))),
            "stamped", producer.send(new ProducerRecord<>(stamped, 0, 1L, "k", "v")).get()
                .timestamp() >= BASE_MS,
            "goes on at", producer.send(new ProducerRecord<>(compacted, "k", "v")).get().offset());
    }

    // -- what the steps share ---------------------------------------------------------------------

    private Properties settings(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        for (int at = 0; at < more.length; at += 2) {
            settings.put(more[at], more[at + 1]);
        }
        return settings;
    }

    private KafkaProducer<String, String> producer(String... more) {
        return new KafkaProducer<>(settings(more));
    }

    private KafkaConsumer<String, String> consumer(String group, String... more) {
        Properties settings = settings(more);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (group != null) {
            settings.put("group.id", group);
        }
        return new KafkaConsumer<>(settings);
    }

    private static List<ConsumerRecord<String, String>> take(
            KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
            records.forEach(found::add);
        }
        return found.subList(0, count);
    }

    private static List<Object> values(Collection<ConsumerRecord<String, String>> records) {
        List<Object> values = new ArrayList<>();
        records.forEach(record -> values.add(record.value()));
        return values;
    }

    /** Poll until every member has so many partitions; what the first has then. */
    @SafeVarargs
    private static int settle(int share, KafkaConsumer<String, String>... members) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (System.currentTimeMillis() < deadline) {
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(50));
            }
            if (Arrays.stream(members).allMatch(each -> each.assignment().size() == share)) {
                break;
            }
        }
        return members[0].assignment().size();
    }

    private static String failure(Future<?> future) throws InterruptedException {
        try {
            future.get();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }

    /** One JSON object of alternating names and values. */
    private static void say(Object... pairs) {
        Map<String, String> fields = new TreeMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            fields.put(json(pairs[at]), json(pairs[at + 1]));
        }
        List<String> parts = new ArrayList<>();
        fields.forEach((name, value) -> parts.add(name + ": " + value));
        System.out.println("{" + String.join(", ", parts) + "}");
    }

    private static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(", ", list.stream().map(JavaPeer::json).toList()) + "]";
        }
        return '"' + value.toString().replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
