package cstp.client;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.reflect.TypeToken;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.MethodDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalInt;
import java.util.concurrent.TimeUnit;

/**
 * The gRPC service config of the contract.
 *
 * <p>gRPC ends a call at the earlier of its deadline and the timeout of its method. Here a deadline replaces the
 * timeout, so timeouts are kept from the channel, and given by this interceptor to calls that have no deadline.
 */
final class ServiceConfig implements ClientInterceptor {
    private final JsonObject config;
    private final Map<String, Duration> timeouts = new HashMap<>();

    /** Reads what is generated from the contract; {@code attempts} replaces how often calls are tried. */
    ServiceConfig(OptionalInt attempts) {
        config = embedded();
        for (JsonElement each : config.getAsJsonArray("methodConfig")) {
            JsonObject rules = each.getAsJsonObject();
            Duration timeout = Duration.parse("PT" + rules.remove("timeout").getAsString());
            for (JsonElement name : rules.getAsJsonArray("name")) {
                timeouts.put(path(name.getAsJsonObject()), timeout);
            }
            attempts.ifPresent(most -> limit(rules, most));
        }
    }

    /** Returns it as channels take it. */
    Map<String, ?> forChannel() {
        return new Gson().fromJson(config, new TypeToken<Map<String, Object>>() {});
    }

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        Duration timeout = timeouts.get(method.getFullMethodName());
        if (timeout == null || options.getDeadline() != null) {
            return next.newCall(method, options);
        }
        return next.newCall(method, options.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS));
    }

    private static JsonObject embedded() {
        try (Reader reader = new InputStreamReader(
                ServiceConfig.class.getResourceAsStream("service_config.json"), StandardCharsets.UTF_8)) {
            return JsonParser.parseReader(reader).getAsJsonObject();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static String path(JsonObject name) {
        return name.get("service").getAsString() + "/" + name.get("method").getAsString();
    }

    private static void limit(JsonObject rules, int attempts) {
        JsonElement policy = rules.remove("retryPolicy");
        // gRPC takes no policy of a single attempt.
        if (policy != null && attempts > 1) {
            policy.getAsJsonObject().addProperty("maxAttempts", attempts);
            rules.add("retryPolicy", policy);
        }
    }
}
