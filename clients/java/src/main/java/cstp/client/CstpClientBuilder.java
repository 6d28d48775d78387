package cstp.client;

import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.OptionalInt;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Says how to reach a server. */
public final class CstpClientBuilder {
    private static final Pattern TARGET = Pattern.compile(
            "(?:(grpcs?|https?)://)?(\\[[0-9a-f:.]+]|[^\\s:/?#@\\[\\]]+)(?::(\\d{1,5}))?/?", Pattern.CASE_INSENSITIVE);
    private static final int MAX_PORT = 65_535;
    private static final int MAX_ANSWER_BYTES = 64 << 20;
    private static final int MAX_ERROR_BYTES = 1 << 20;
    /** What is kept of a call to be sent again: more than the longest request that servers take by default. */
    private static final int MAX_REPEATED_BYTES = 8 << 20;
    /** How long a server with open calls may be silent before it is asked whether it is there. */
    private static final Duration SILENCE = Duration.ofSeconds(30);

    private final boolean secure;
    private final String address;
    private final TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
    private final Metadata headers = new Metadata();
    private OptionalInt attempts = OptionalInt.empty();

    CstpClientBuilder(String target) {
        Matcher parts = TARGET.matcher(target);
        String scheme = parts.matches() && parts.group(1) != null ? parts.group(1).toLowerCase(Locale.ROOT) : "grpc";
        // A port is for http and https to leave out; gRPC takes theirs.
        boolean usable = parts.matches()
                && (parts.group(3) == null ? scheme.startsWith("http") : Integer.parseInt(parts.group(3)) <= MAX_PORT);
        if (!usable) {
            // Not shown: it may hold a password.
            throw new IllegalArgumentException("the target is not of the form grpc://HOST:PORT");
        }
        secure = scheme.endsWith("s");
        address = parts.group(2) + (parts.group(3) == null ? "" : ":" + parts.group(3));
    }

    /** Says who calls. Throws IllegalArgumentException unless it is of visible ASCII characters. */
    public CstpClientBuilder token(String token) {
        if (!token.matches("[!-~]+")) {
            throw new IllegalArgumentException("the token must be of visible ASCII characters without spaces");
        }
        headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
        return this;
    }

    /** Trusts the authorities of a PEM file instead of the system's. */
    public CstpClientBuilder rootCertificates(Path pem) throws IOException {
        tls.trustManager(pem.toFile());
        return this;
    }

    /** Tries calls so often at the most, instead of as often as the service config says; 1 never repeats. */
    public CstpClientBuilder maxAttempts(int attempts) {
        this.attempts = OptionalInt.of(attempts);
        return this;
    }

    /** Returns the client, which connects with its first call. */
    public CstpClient build() {
        ServiceConfig config = new ServiceConfig(attempts);
        // Encoded for the brackets of IPv6, which the path of a URI may not have.
        String name = "dns:///" + URLEncoder.encode(address, StandardCharsets.UTF_8);
        ChannelCredentials credentials = secure ? tls.build() : InsecureChannelCredentials.create();
        ManagedChannel connection = Grpc.newChannelBuilder(name, credentials)
                .defaultServiceConfig(config.forChannel())
                .disableServiceConfigLookUp()
                .enableRetry()
                .maxRetryAttempts(Integer.MAX_VALUE)
                .perRpcBufferLimit(MAX_REPEATED_BYTES)
                .maxInboundMessageSize(MAX_ANSWER_BYTES)
                .maxInboundMetadataSize(MAX_ERROR_BYTES)
                .keepAliveTime(SILENCE.toSeconds(), TimeUnit.SECONDS)
                .build();
        Channel channel = ClientInterceptors.intercept(
                connection, new Identifiers(), config, MetadataUtils.newAttachHeadersInterceptor(headers));
        return new CstpClient(connection, channel, null);
    }
}
