import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import cstp.client.CstpClient;
import cstp.client.CstpException;
import cstp.v1.AnnounceIntentRequest;
import cstp.v1.AnnounceIntentResponse;
import cstp.v1.Stakes;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;

/** Announces an intent to CSTP_TARGET with CSTP_TOKEN, trusting CSTP_CA_FILE if it is set, and prints the verdict. */
public final class AnnounceIntent {
    private AnnounceIntent() {}

    public static void main(String[] arguments) {
        try (CstpClient client = connect().withDeadline(Duration.ofSeconds(10))) {
            print(client.announceIntent(intent()));
        } catch (CstpException | IllegalArgumentException | IOException failure) {
            System.err.println("The intent was not announced: " + failure.getMessage());
            System.exit(1);
        }
    }

    private static CstpClient connect() throws IOException {
        var builder = CstpClient.builder(System.getenv().getOrDefault("CSTP_TARGET", "grpc://localhost:50051"));
        if (System.getenv("CSTP_TOKEN") != null) {
            builder.token(System.getenv("CSTP_TOKEN"));
        }
        if (System.getenv("CSTP_CA_FILE") != null) {
            builder.rootCertificates(Path.of(System.getenv("CSTP_CA_FILE")));
        }
        return builder.build();
    }

    private static AnnounceIntentRequest intent() {
        return AnnounceIntentRequest.newBuilder()
                .setIntent("Deploy the auth service to production")
                .setCategory("deployment")
                .setStakes(Stakes.STAKES_HIGH)
                .setConfidence(0.9)
                .setMetadata(Struct.newBuilder()
                        .putFields("affectsProduction", Value.newBuilder().setBoolValue(true).build())
                        .putFields("codeReviewCompleted", Value.newBuilder().setBoolValue(false).build()))
                .build();
    }

    private static void print(AnnounceIntentResponse answer) {
        var verdict = answer.getGuardrailStatus();
        System.out.println(verdict.getAllowed() ? "Allowed." : "Blocked.");
        for (var violation : verdict.getViolationsList()) {
            System.out.printf("  %s: %s%n", violation.getGuardrailId(), violation.getMessage());
            if (violation.hasSuggestion()) {
                System.out.println("    " + violation.getSuggestion());
            }
        }
        for (var decision : answer.getSimilarDecisionsList()) {
            System.out.printf("Similar (%.2f): %s%n", decision.getScore(), decision.getTitle());
        }
    }
}
