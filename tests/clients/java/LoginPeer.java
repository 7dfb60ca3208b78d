// Kafka's own Java client with a login: `java -cp JARS LoginPeer.java STEP PROPERTIES TOPIC`.
// Each step prints what it saw as JSON, one object a line; test_logins.py checks it.

import java.io.FileInputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class LoginPeer {
    private static final long PATIENCE_MS = 30_000;
    private static final int COUNT = 50;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[1])) {
            settings.load(file);
        }
        String topic = arguments[2];
        switch (arguments[0]) {
            case "produce" -> produce(settings, topic);
            case "steady" -> steady(settings, topic);
            case "fail" -> fail(settings);
            default -> throw new IllegalArgumentException("no step " + arguments[0]);
        }
    }

    /** Some records, written and read. */
    private static void produce(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
        try (KafkaProducer<String, String> producer = producer(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < COUNT; number++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "value " + number)));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
        System.out.println("{\"read\": " + read(settings, topic, COUNT).size() + "}");
    }

    /** One record at a time until the test creates a file. */
    private static void steady(Properties settings, String topic) throws Exception {
        Path stop = Path.of(settings.getProperty("test.stop"));
        int sent = 0;
        try (KafkaProducer<String, String> producer = producer(settings)) {
            while (!Files.exists(stop)) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(sent))).get();
                sent++;
                Thread.sleep(5);
            }
        }
        List<String> found = read(settings, topic, sent);
        boolean isSame = true;
        for (int number = 0; number < sent; number++) {
            isSame &= found.get(number).equals(Integer.toString(number));
        }
        System.out.println("{\"sent\": " + sent + ", \"read\": " + found.size()
            + ", \"same\": " + isSame + "}");
    }

    /** The exception of a failed login. */
    private static void fail(Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.listTopics().names().get();
            System.out.println("{\"error\": null}");
        } catch (ExecutionException error) {
            String name = error.getCause().getClass().getSimpleName();
            System.out.println("{\"error\": \"" + name + "\"}");
        }
    }

    private static List<String> read(Properties settings, String topic, int count) {
        List<String> found = new ArrayList<>();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seekToBeginning(consumer.assignment());
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (found.size() < count && System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    found.add(record.value());
                }
            }
        }
        return found;
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }
}
