package cstp.client;

import static org.junit.jupiter.api.Assertions.assertAll;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.MessageOrBuilder;
import com.google.protobuf.util.JsonFormat;
import cstp.v1.AccessServiceGrpc;
import cstp.v1.AnnounceIntentRequest;
import cstp.v1.CheckGuardrailsRequest;
import cstp.v1.ErrorReason;
import cstp.v1.GetAccessRequest;
import cstp.v1.ImportDecisionsRequest;
import cstp.v1.JournalServiceGrpc;
import cstp.v1.QueryDecisionsRequest;
import cstp.v1.PreActionRequest;
import cstp.v1.PreActionServiceGrpc;
import cstp.v1.RecordDecisionRequest;
import cstp.v1.RecordThoughtRequest;
import cstp.v1.ReviewDecisionRequest;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import liaison.v1.WatchEventsRequest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The cases of clients of every language; the head of clients/cases.yaml says how to read them. */
final class CstpClientTest {
    private static final JsonFormat.Printer PRINTER = JsonFormat.printer().includingDefaultValueFields();
    private static final JsonPrimitive ANY = new JsonPrimitive("$any");

    static Stream<Arguments> cases() throws IOException {
        JsonObject table = table();
        return elements(table.get("cases"))
                .map(JsonElement::getAsJsonObject)
                .map(each -> Arguments.of(each.get("name").getAsString(), each, table));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cases")
    void meets(String name, JsonObject wanted, JsonObject table) {
        assertAll(name, () -> meet(wanted, table));
    }

    private static void meet(JsonObject wanted, JsonObject table) throws IOException {
        List<JsonElement> steps = wanted.has("steps") ? wanted.getAsJsonArray("steps").asList() : List.of(wanted);
        for (JsonElement each : steps) {
            JsonObject step = each.getAsJsonObject();
            try (CstpClient client = connect(wanted, table)) {
                if (step.has("error")) {
                    judge(step.getAsJsonObject("error"), assertThrows(CstpException.class, () -> make(client, step)));
                } else {
                    judge(step.has("answer") ? step.get("answer") : step.get("answers"), make(client, step), "answer");
                }
            }
        }
    }

    @Test
    void callsOtherServices() throws IOException {
        try (CstpClient client = connect(new JsonObject(), table())) {
            var request = GetAccessRequest.getDefaultInstance();
            var access = client.call(AccessServiceGrpc::newBlockingStub, stub -> stub.getAccess(request));
            assertEquals("alice", access.getRequestingAgent());
        }
    }

    @Test
    void repeatsTheLongestRequestsThatServersTake() throws IOException {
        JsonObject faults = new JsonObject();
        faults.addProperty("server", "faults");
        String told = "{\"reason\": \"UNAVAILABLE\", \"times\": 1, \"more\": \"" + "x".repeat(4_000_000) + "\"}";
        try (CstpClient client = connect(faults, table())) {
            var request = QueryDecisionsRequest.newBuilder().setQuery(told).build();
            assertEquals("attempt 2", client.queryDecisions(request).getAgent());
        }
    }

    @Test
    void tellsWhatTheFailureOfAStubMeans() throws IOException {
        JsonObject stranger = new JsonObject();
        stranger.addProperty("token", "stranger");
        try (CstpClient client = connect(stranger, table())) {
            var stub = AccessServiceGrpc.newFutureStub(client.channel());
            var answer = stub.getAccess(GetAccessRequest.getDefaultInstance());
            CstpException error = CstpException.of(assertThrows(ExecutionException.class, answer::get));
            assertEquals(ErrorReason.ERROR_REASON_AUTHENTICATION_REQUIRED, error.reason());
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "ftp://localhost:1",
                "grpc://",
                "grpc://localhost",
                "grpcs://localhost",
                "localhost",
                "localhost:",
                "localhost:99999",
                "grpc://localhost:1?a=b",
                "grpc://me:secret@localhost:1",
                "grpc://me:sec ret@localhost:1",
                "grpc://localhost:1/path"
            })
    void refusesATargetOfAnotherForm(String target) {
        var refused = assertThrows(IllegalArgumentException.class, () -> CstpClient.builder(target).build());
        assertTrue(!refused.getMessage().contains("sec"), refused.getMessage());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "two words", "two\nlines", "schlüssel"})
    void refusesATokenThatCannotBeSent(String token) {
        assertThrows(IllegalArgumentException.class, () -> CstpClient.builder("localhost:1").token(token));
    }

    @ParameterizedTest
    @ValueSource(strings = {"localhost:1", "grpc://[::1]:1", "http://localhost:1/", "grpcs://a-b:1", "https://[::1]"})
    void takesTargets(String target) {
        assertDoesNotThrow(() -> CstpClient.builder(target).build().close());
    }

    private static JsonObject table() throws IOException {
        String path = System.getenv("CSTP_CASES");
        assertNotNull(path, "CSTP_CASES is not set: run `make test-clients` in the root of the repository");
        return JsonParser.parseString(Files.readString(Path.of(path))).getAsJsonObject();
    }

    private static CstpClient connect(JsonObject wanted, JsonObject table) throws IOException {
        String server = table.getAsJsonObject("servers").get(text(wanted, "server", "plain")).getAsString();
        JsonElement token = table.getAsJsonObject("tokens").get(text(wanted, "token", "alice"));
        var builder = CstpClient.builder(server).rootCertificates(Path.of(text(table, "rootCertificates", null)));
        if (!token.isJsonNull()) {
            builder.token(token.getAsString());
        }
        if (wanted.has("attempts")) {
            builder.maxAttempts(wanted.get("attempts").getAsInt());
        }
        CstpClient client = builder.build();
        return wanted.has("timeoutMs")
                ? client.withDeadline(Duration.ofMillis(wanted.get("timeoutMs").getAsLong()))
                : client;
    }

    private static JsonElement make(CstpClient client, JsonObject step) throws InvalidProtocolBufferException {
        JsonElement request = step.get("request");
        return switch (step.get("call").getAsString()) {
            case "announceIntent" ->
                    printed(client.announceIntent(read(request, AnnounceIntentRequest.newBuilder()).build()));
            case "queryDecisions" ->
                    printed(client.queryDecisions(read(request, QueryDecisionsRequest.newBuilder()).build()));
            case "checkGuardrails" ->
                    printed(client.checkGuardrails(read(request, CheckGuardrailsRequest.newBuilder()).build()));
            case "importDecisions" -> {
                List<ImportDecisionsRequest> requests = new ArrayList<>();
                for (JsonElement each : step.getAsJsonArray("requests")) {
                    requests.add(read(each, ImportDecisionsRequest.newBuilder()).build());
                }
                yield printed(client.importDecisions(requests));
            }
            case "reviewDecision" -> {
                var review = read(request, ReviewDecisionRequest.newBuilder()).build();
                yield printed(client.call(JournalServiceGrpc::newBlockingStub, stub -> stub.reviewDecision(review)));
            }
            case "recordThought" -> {
                var thought = read(request, RecordThoughtRequest.newBuilder()).build();
                yield printed(client.call(JournalServiceGrpc::newBlockingStub, stub -> stub.recordThought(thought)));
            }
            case "preAction" -> {
                var action = read(request, PreActionRequest.newBuilder()).build();
                yield printed(client.call(PreActionServiceGrpc::newBlockingStub, stub -> stub.preAction(action)));
            }
            case "recordDecision" -> {
                var record = read(request, RecordDecisionRequest.newBuilder()).build();
                yield printed(client.call(JournalServiceGrpc::newBlockingStub, stub -> stub.recordDecision(record)));
            }
            case "watchEvents" -> {
                JsonArray answers = new JsonArray();
                try (var events = client.watchEvents(read(request, WatchEventsRequest.newBuilder()).build())) {
                    for (var each : events.limit(step.get("take").getAsLong()).toList()) {
                        answers.add(printed(each));
                    }
                }
                yield answers;
            }
            default -> throw new AssertionError("There is no call " + step.get("call"));
        };
    }

    private static void judge(JsonObject wanted, CstpException error) {
        assertEquals("ERROR_REASON_" + wanted.get("reason").getAsString(), error.reason().name());
        assertTrue(error.getMessage().contains(text(wanted, "message", "")), error.getMessage());
        assertEquals(
                elements(wanted.get("violations")).map(JsonElement::getAsString).collect(Collectors.toSet()),
                error.violations().stream().map(CstpException.FieldViolation::field).collect(Collectors.toSet()));
        assertEquals(
                elements(wanted.get("blocks")).map(JsonElement::getAsString).toList(),
                error.blocks().stream().map(CstpException.Block::guardrailId).toList());
        assertTrue(error.blocks().stream().noneMatch(each -> each.name().isEmpty() || each.message().isEmpty()));
        if (wanted.has("metadata")) {
            for (var each : wanted.getAsJsonObject("metadata").entrySet()) {
                assertEquals(each.getValue().getAsString(), error.metadata().get(each.getKey()));
            }
        }
        if (wanted.has("requestId")) {
            assertEquals(wanted.get("requestId").getAsBoolean(), error.requestId().isPresent());
        }
        if (wanted.has("retryDelayMs")) {
            long delay = error.retryDelay().orElseThrow().toMillis();
            JsonArray bounds = wanted.getAsJsonArray("retryDelayMs");
            assertTrue(bounds.get(0).getAsLong() <= delay && delay <= bounds.get(1).getAsLong(), delay + " ms");
        }
    }

    /** Judges an answer; objects may hold more than is wanted. */
    private static void judge(JsonElement wanted, JsonElement given, String where) {
        assertNotNull(given, where);
        if (wanted.isJsonObject()) {
            assertTrue(given.isJsonObject(), where);
            for (var each : wanted.getAsJsonObject().entrySet()) {
                judge(each.getValue(), given.getAsJsonObject().get(each.getKey()), where + "." + each.getKey());
            }
        } else if (wanted.isJsonArray()) {
            assertTrue(given.isJsonArray(), where);
            assertEquals(wanted.getAsJsonArray().size(), given.getAsJsonArray().size(), where);
            for (int i = 0; i < wanted.getAsJsonArray().size(); i++) {
                judge(wanted.getAsJsonArray().get(i), given.getAsJsonArray().get(i), where + "[" + i + "]");
            }
        } else if (!wanted.equals(ANY)) {
            assertEquals(wanted, given, where);
        }
    }

    private static <B extends Message.Builder> B read(JsonElement json, B builder)
            throws InvalidProtocolBufferException {
        JsonFormat.parser().merge(json.toString(), builder);
        return builder;
    }

    private static JsonElement printed(MessageOrBuilder message) throws InvalidProtocolBufferException {
        return JsonParser.parseString(PRINTER.print(message));
    }

    private static String text(JsonObject object, String name, String otherwise) {
        return object.has(name) ? object.get(name).getAsString() : otherwise;
    }

    private static Stream<JsonElement> elements(JsonElement array) {
        return array == null ? Stream.of() : StreamSupport.stream(array.getAsJsonArray().spliterator(), false);
    }
}
