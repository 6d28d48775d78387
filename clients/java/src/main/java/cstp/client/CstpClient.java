package cstp.client;

import cstp.v1.AnnounceIntentRequest;
import cstp.v1.AnnounceIntentResponse;
import cstp.v1.CheckGuardrailsRequest;
import cstp.v1.CheckGuardrailsResponse;
import cstp.v1.CstpServiceGrpc;
import cstp.v1.ImportDecisionsRequest;
import cstp.v1.ImportDecisionsResponse;
import cstp.v1.JournalServiceGrpc;
import cstp.v1.QueryDecisionsRequest;
import cstp.v1.QueryDecisionsResponse;
import io.grpc.Channel;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractStub;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Stream;
import liaison.v1.LiaisonServiceGrpc;
import liaison.v1.WatchEventsRequest;
import liaison.v1.WatchEventsResponse;

/** Calls a CSTP server over gRPC; each call may throw {@link CstpException}. Threads may share a client. */
public final class CstpClient implements AutoCloseable {
    private final ManagedChannel connection;
    private final Channel channel;
    private final Duration deadline;

    CstpClient(ManagedChannel connection, Channel channel, Duration deadline) {
        this.connection = connection;
        this.channel = channel;
        this.deadline = deadline;
    }

    /**
     * Says where the server is: {@code grpc://host:port}, {@code http://host:port} or {@code host:port} without TLS,
     * {@code grpcs://host:port} or {@code https://host} with it. Throws IllegalArgumentException for anything else.
     */
    public static CstpClientBuilder builder(String target) {
        return new CstpClientBuilder(target);
    }

    /** Returns a client whose calls take so long at the most, on the same connection: closing one closes both. */
    public CstpClient withDeadline(Duration deadline) {
        return new CstpClient(connection, channel, deadline);
    }

    /** Announces an intent, with a correlation id made up where it has none, so that it can be repeated safely. */
    public AnnounceIntentResponse announceIntent(AnnounceIntentRequest request) {
        return call(CstpServiceGrpc::newBlockingStub, stub -> stub.announceIntent(request));
    }

    public QueryDecisionsResponse queryDecisions(QueryDecisionsRequest request) {
        return call(CstpServiceGrpc::newBlockingStub, stub -> stub.queryDecisions(request));
    }

    public CheckGuardrailsResponse checkGuardrails(CheckGuardrailsRequest request) {
        return call(CstpServiceGrpc::newBlockingStub, stub -> stub.checkGuardrails(request));
    }

    /** Imports decisions as they are read; what the server stored before a failure stays. */
    public ImportDecisionsResponse importDecisions(Iterable<ImportDecisionsRequest> decisions) {
        return call(JournalServiceGrpc::newBlockingV2Stub, stub -> {
            var call = stub.importDecisions();
            try {
                for (var each : decisions) {
                    call.write(each);
                }
                call.halfClose();
                return call.read();
            } finally {
                call.cancel("the import is over", null);
            }
        });
    }

    /** Streams events as they happen, until the stream is closed. */
    public Stream<WatchEventsResponse> watchEvents(WatchEventsRequest request) {
        var events = call(LiaisonServiceGrpc::newBlockingV2Stub, stub -> stub.watchEvents(request));
        return Stream.generate(() -> attempt(events, call -> call.read()))
                .takeWhile(Objects::nonNull)
                .onClose(() -> events.cancel("no longer watched", null));
    }

    /** Calls any service: {@code client.call(AccessServiceGrpc::newBlockingStub, stub -> stub.getAccess(request))}. */
    public <S extends AbstractStub<S>, A> A call(Function<Channel, S> service, Call<S, A> method) {
        S stub = service.apply(channel);
        return attempt(
                deadline == null ? stub : stub.withDeadlineAfter(deadline.toNanos(), TimeUnit.NANOSECONDS), method);
    }

    /** Returns what generated stubs take; of what they throw, {@link CstpException#of} tells the meaning. */
    public Channel channel() {
        return channel;
    }

    @Override
    public void close() {
        connection.shutdownNow();
    }

    private static <S, A> A attempt(S stub, Call<S, A> method) {
        try {
            return method.on(stub);
        } catch (StatusException | StatusRuntimeException failure) {
            throw CstpException.of(failure);
        } catch (InterruptedException interruption) {
            Thread.currentThread().interrupt();
            throw CstpException.of(Status.CANCELLED.withDescription("interrupted").asException());
        }
    }

    /** A call on a generated stub. */
    @FunctionalInterface
    public interface Call<S, A> {
        A on(S stub) throws StatusException, InterruptedException;
    }
}
