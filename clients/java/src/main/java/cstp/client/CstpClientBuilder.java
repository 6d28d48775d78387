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
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.OptionalInt;
import java.util.concurrent.TimeUnit;

/** Says how to reach a server. */
public final class CstpClientBuilder {
    private static final int MAX_ANSWER_BYTES = 64 << 20;
    private static final int MAX_ERROR_BYTES = 1 << 20;
    /** How long a server with open calls may be silent before it is asked whether it is there. */
    private static final Duration SILENCE = Duration.ofSeconds(30);

    private final URI target;
    private final TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
    private final Metadata headers = new Metadata();
    private OptionalInt attempts = OptionalInt.empty();

    CstpClientBuilder(String target) {
        this.target = URI.create(target.contains("://") ? target : "grpc://" + target);
        String authority = this.target.getRawAuthority();
        String path = this.target.getRawPath();
        if (authority == null || authority.contains("@") || !path.replace("/", "").isEmpty()) {
            // Not shown: it may hold a password.
            throw new IllegalArgumentException("the target is not of the form grpc://HOST:PORT");
        }
    }

    /** Says who calls. */
    public CstpClientBuilder token(String token) {
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
        String name = "dns:///" + URLEncoder.encode(target.getRawAuthority(), StandardCharsets.UTF_8);
        ManagedChannel connection = Grpc.newChannelBuilder(name, credentials())
                .defaultServiceConfig(config.forChannel())
                .disableServiceConfigLookUp()
                .enableRetry()
                .maxRetryAttempts(Integer.MAX_VALUE)
                .maxInboundMessageSize(MAX_ANSWER_BYTES)
                .maxInboundMetadataSize(MAX_ERROR_BYTES)
                .keepAliveTime(SILENCE.toSeconds(), TimeUnit.SECONDS)
                .build();
        Channel channel = ClientInterceptors.intercept(
                connection, config, MetadataUtils.newAttachHeadersInterceptor(headers));
        return new CstpClient(connection, channel, null);
    }

    private ChannelCredentials credentials() {
        return switch (target.getScheme()) {
            case "grpc", "http" -> InsecureChannelCredentials.create();
            case "grpcs", "https" -> tls.build();
            default -> throw new IllegalArgumentException("the target is neither grpc(s):// nor http(s)://");
        };
    }
}
