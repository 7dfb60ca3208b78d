// Confluent's Java client of schema registries: `java -cp JARS RegistryPeer.java STEP [URL]`.
// Apache Flink's package for Avro contains it under another package name. Each step prints what it
// saw as JSON, one object a line; test_java_registry.py checks it.

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityChecker;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.CompatibilityLevel;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaMetadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.Encoder;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.flink.formats.avro.registry.confluent.ConfluentSchemaRegistryCoder;

public class RegistryPeer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String USER = record("User", "{'name':'name','type':'string'}");
    private static final String WITH_AGE =
            record("User", "{'name':'name','type':'string'},{'name':'age','type':'int','default':0}");
    private static final String WITHOUT_DEFAULT =
            record("User", "{'name':'name','type':'string'},{'name':'height','type':'int'}");

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("judge")) {
            judge();
            return;
        }
        CachedSchemaRegistryClient client = new CachedSchemaRegistryClient(arguments[1], 100);
        switch (arguments[0]) {
            case "evolve" -> evolve(client, arguments[1]);
            case "encode" -> encode(client);
            case "decode" -> decode(client);
            default -> throw new IllegalArgumentException("no step " + arguments[0]);
        }
    }

    private static String record(String name, String fields) {
        String text = "{'type':'record','name':'" + name + "','fields':[" + fields + "]}";
        return text.replace('\'', '"');
    }

    private static void print(Object... namesAndValues) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            row.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        System.out.println(JSON.writeValueAsString(row));
    }

    /** Registers, evolves, references and deletes schemas. */
    private static void evolve(CachedSchemaRegistryClient client, String url) throws Exception {
        int first = client.register("java-value", new AvroSchema(USER));
        int again = client.register("java-value", new AvroSchema(USER));
        int other = client.register("java-copy-value", new AvroSchema(USER));
        int second = client.register("java-value", new AvroSchema(WITH_AGE));
        print("first", first, "again", again, "other", other, "second", second);
        print("versions", client.getAllVersions("java-value"));
        print("subjects", client.getAllSubjectsById(first));
        ParsedSchema wrong = new AvroSchema(WITHOUT_DEFAULT);
        print("compatible", client.testCompatibility("java-value", wrong));
        print("reasons", client.testCompatibilityVerbose("java-value", wrong).size() > 0);
        try {
            client.register("java-value", wrong);
        } catch (RestClientException error) {
            print("status", error.getStatus(), "code", error.getErrorCode());
        }
        SchemaMetadata latest = client.getLatestSchemaMetadata("java-value");
        print("latest", latest.getVersion(), "id", latest.getId(), "type", latest.getSchemaType());
        print("id of the schema", client.getId("java-value", new AvroSchema(WITH_AGE)),
                "version", client.getVersion("java-value", new AvroSchema(WITH_AGE)));

        SchemaReference reference = new SchemaReference("User", "java-value", 2);
        String order = record("Order", "{'name':'by','type':'User'}");
        AvroSchema referring =
                new AvroSchema(order, List.of(reference), Map.of("User", WITH_AGE), null);
        int third = client.register("java-order-value", referring);
        CachedSchemaRegistryClient fresh = new CachedSchemaRegistryClient(url, 100);
        AvroSchema found = (AvroSchema) fresh.getSchemaById(third);
        print("references", found.references().size(),
                "field", found.rawSchema().getField("by").schema().getField("age").schema().getName());
        try {
            client.deleteSchemaVersion(Map.of(), "java-value", "2", false);
        } catch (RestClientException error) {
            print("status", error.getStatus(), "code", error.getErrorCode());
        }
        try {
            fresh.getSchemaById(1_000_000);
        } catch (RestClientException error) {
            print("status", error.getStatus(), "code", error.getErrorCode());
        }
        client.updateCompatibility("java-copy-value", "NONE");
        print("level", client.getCompatibility("java-copy-value"));
        print("deleted", client.deleteSubject(Map.of(), "java-copy-value", false));
        print("deleted for good", client.deleteSubject(Map.of(), "java-copy-value", true));
        print("all", client.getAllSubjects());
    }

    /** Prints a value that starts with the id of its schema, as Flink's serializer writes it. */
    private static void encode(CachedSchemaRegistryClient client) throws Exception {
        Schema schema = new Schema.Parser().parse(WITH_AGE);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        new ConfluentSchemaRegistryCoder("from-java-value", client).writeSchema(schema, out);
        GenericData.Record value = new GenericData.Record(schema);
        value.put("name", "ada");
        value.put("age", 36);
        Encoder encoder = EncoderFactory.get().binaryEncoder(out, null);
        new GenericDatumWriter<GenericData.Record>(schema).write(value, encoder);
        encoder.flush();
        print("value", Base64.getEncoder().encodeToString(out.toByteArray()));
    }

    /** Reads a value in base64 from the standard input. */
    private static void decode(CachedSchemaRegistryClient client) throws Exception {
        byte[] value = Base64.getDecoder().decode(new String(System.in.readAllBytes()).strip());
        ByteArrayInputStream in = new ByteArrayInputStream(value);
        Schema schema = new ConfluentSchemaRegistryCoder("unused", client).readSchema(in);
        Object read = new GenericDatumReader<>(schema)
                .read(null, DecoderFactory.get().directBinaryDecoder(in, null));
        System.out.println(read);
    }

    /** Judges, for each line {level, old: [...], new} of the standard input, whether it fits. */
    private static void judge() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode question = JSON.readTree(line);
            List<ParsedSchema> old = new ArrayList<>();
            for (JsonNode each : question.get("old")) {
                old.add(new AvroSchema(each.toString()));
            }
            CompatibilityLevel level = CompatibilityLevel.valueOf(question.get("level").asText());
            List<String> reasons = CompatibilityChecker.checker(level)
                    .isCompatible(new AvroSchema(question.get("new").toString()), old);
            System.out.println(reasons.isEmpty());
        }
    }
}
