package cstp.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.PreconditionFailure;
import com.google.rpc.RetryInfo;
import cstp.v1.ErrorReason;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** A call failed, for a {@link #reason()} that does not change and with a message that people may read. */
@SuppressWarnings("serial")
public final class CstpException extends RuntimeException {
    /** That of the contract's reasons; those of others may have the same names. */
    private static final String DOMAIN = "cstp";
    private static final String PREFIX = "ERROR_REASON_";

    private final ErrorReason reason;
    private final Map<String, String> metadata;
    private final List<FieldViolation> violations;
    private final List<Block> blocks;
    private final Duration retryDelay;

    private CstpException(
            ErrorReason reason,
            String message,
            Map<String, String> metadata,
            List<FieldViolation> violations,
            List<Block> blocks,
            Duration retryDelay,
            Throwable cause) {
        super(message, cause);
        this.reason = reason;
        this.metadata = Map.copyOf(metadata);
        this.violations = List.copyOf(violations);
        this.blocks = List.copyOf(blocks);
        this.retryDelay = retryDelay;
    }

    /** What is wrong with one field of a request; {@code field} is its path as the contract writes it. */
    public record FieldViolation(String field, String description) {}

    /** A guardrail that forbids what was asked for. */
    public record Block(String guardrailId, String name, String message) {}

    /** Returns what a failure of a generated stub says. */
    public static CstpException of(Throwable failure) {
        Status status = Status.fromThrowable(failure);
        List<Any> details = details(failure);
        return detail(details, ErrorInfo.class)
                .filter(info -> info.getDomain().equals(DOMAIN))
                .map(info -> told(info, status, details, failure))
                .orElseGet(() -> ofBareStatus(status, failure));
    }

    /** Returns why the call failed; INTERNAL for reasons of a later contract, which the metadata names. */
    public ErrorReason reason() {
        return reason;
    }

    /** Returns the fields that are wrong, for INVALID_ARGUMENT and MISSING_PARAMETER. */
    public List<FieldViolation> violations() {
        return violations;
    }

    /** Returns the guardrails that forbid the call. */
    public List<Block> blocks() {
        return blocks;
    }

    /** Returns how long to wait before another attempt; empty where the server does not say. */
    public Optional<Duration> retryDelay() {
        return Optional.ofNullable(retryDelay);
    }

    /** Returns details by name, for instance the permission that is missing. */
    public Map<String, String> metadata() {
        return metadata;
    }

    /** Returns the id under which the server's log tells more; empty where no server answered. */
    public Optional<String> requestId() {
        return Optional.ofNullable(metadata.get("requestId"));
    }

    @Override
    public String toString() {
        return getClass().getName() + ": " + reason.name().substring(PREFIX.length()) + ": " + getMessage();
    }

    private static CstpException told(ErrorInfo info, Status status, List<Any> details, Throwable failure) {
        Map<String, String> metadata = new HashMap<>(info.getMetadataMap());
        var known = ErrorReason.getDescriptor().findValueByName(PREFIX + info.getReason());
        if (known == null) {
            metadata.putIfAbsent("reason", info.getReason());
        }
        List<FieldViolation> violations = detail(details, BadRequest.class).stream()
                .flatMap(request -> request.getFieldViolationsList().stream())
                .map(each -> new FieldViolation(each.getField(), each.getDescription()))
                .toList();
        List<Block> blocks = detail(details, PreconditionFailure.class).stream()
                .flatMap(failed -> failed.getViolationsList().stream())
                .map(each -> new Block(each.getType(), each.getSubject(), each.getDescription()))
                .toList();
        Duration delay = detail(details, RetryInfo.class)
                .map(RetryInfo::getRetryDelay)
                .map(each -> Duration.ofSeconds(each.getSeconds(), each.getNanos()))
                .orElse(null);
        ErrorReason reason = known == null ? ErrorReason.ERROR_REASON_INTERNAL : ErrorReason.valueOf(known);
        return new CstpException(reason, status.getDescription(), metadata, violations, blocks, delay, failure);
    }

    /** Returns what a status without details means: gRPC itself or something between answered. */
    private static CstpException ofBareStatus(Status status, Throwable failure) {
        String said = String.valueOf(status.getDescription());
        ErrorReason reason = status.getCode() == Status.Code.RESOURCE_EXHAUSTED
                ? reasonForExhaustion(said)
                : StatusReasons.reasonForCode(status.getCode());
        String message = status.getCode() + ": " + said + causes(status.getCause());
        return new CstpException(reason, message, Map.of(), List.of(), List.of(), null, failure);
    }

    /** Returns what exhaustion without details means: only its text tells which limit, of sizes or of calls. */
    private static ErrorReason reasonForExhaustion(String said) {
        if (said.contains("Received message larger") || said.contains("exceeds maximum size")) {
            return ErrorReason.ERROR_REASON_INVALID_ARGUMENT;
        }
        boolean answer = said.contains("Sent message larger");
        return answer
                ? ErrorReason.ERROR_REASON_INTERNAL
                : StatusReasons.reasonForCode(Status.Code.RESOURCE_EXHAUSTED);
    }

    private static String causes(Throwable first) {
        StringBuilder told = new StringBuilder();
        for (Throwable cause = first; cause != null; cause = cause.getCause()) {
            if (cause.getMessage() != null && told.indexOf(cause.getMessage()) < 0) {
                told.append(": ").append(cause.getMessage());
            }
        }
        return told.toString();
    }

    private static List<Any> details(Throwable failure) {
        try {
            return StatusProto.fromThrowable(failure).getDetailsList();
        } catch (IllegalArgumentException unreadable) {
            return List.of();
        }
    }

    private static <M extends Message> Optional<M> detail(List<Any> details, Class<M> type) {
        try {
            for (Any each : details) {
                if (each.is(type)) {
                    return Optional.of(each.unpack(type));
                }
            }
        } catch (InvalidProtocolBufferException unreadable) {
            return Optional.empty();
        }
        return Optional.empty();
    }
}
