// The Java client of 2018, whose versions of the protocol are the oldest that are spoken here:
// `java -cp JARS OldestPeer.java ADDRESS TOPIC`. Prints what it saw as JSON; test_java.py checks it.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class OldestPeer {
    private static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        String topic = arguments[1];
        try (AdminClient admin = AdminClient.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            String retention = admin.describeConfigs(List.of(resource)).all().get().get(resource)
                .get("retention.ms").value();
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
                write(topic, codec);
            }
            transact(topic);
            String group = "g-" + topic;
            int read = read(topic, 501, "group.id", group, "isolation.level", "read_committed");
            long committed = admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata().get().get(new TopicPartition(topic, 0)).offset();
            System.out.printf("{\"nodes\": %d, \"retention\": %s, \"read\": %d, \"committed\": %d}%n",
                admin.describeCluster().nodes().get().size(), retention, read, committed);
            admin.deleteTopics(List.of(topic)).all().get();
        }
    }

    private static void write(String topic, String codec) {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                settings("compression.type", codec, "enable.idempotence", "true"))) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>(topic, "k", codec + number));
            }
        }
    }

    /** One record that was aborted, one that was committed. */
    private static void transact(String topic) {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings("transactional.id", topic))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "aborted"));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "committed"));
            producer.commitTransaction();
        }
    }

    /** Reads in a group until there are so many, and commits. */
    private static int read(String topic, int count, String... more) {
        int found = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(more))) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + 30_000;
            while (found < count && System.currentTimeMillis() < deadline) {
                found += consumer.poll(Duration.ofMillis(200)).count();
            }
            consumer.commitSync();
        }
        return found;
    }

    private static Properties settings(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        for (int at = 0; at < more.length; at += 2) {
            settings.put(more[at], more[at + 1]);
        }
        return settings;
    }
}
