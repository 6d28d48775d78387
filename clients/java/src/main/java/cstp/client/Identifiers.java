package cstp.client;

import cstp.v1.AnnounceIntentRequest;
import cstp.v1.PreActionRequest;
import cstp.v1.RecordDecisionRequest;
import cstp.v1.RecordThoughtRequest;
import cstp.v1.ReviewDecisionRequest;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.MethodDescriptor;
import java.util.UUID;

/** Gives requests that have none the identifier by which the server recognises a repetition. */
final class Identifiers implements ClientInterceptor {
    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            @SuppressWarnings("unchecked") // A request stays of its type.
            public void sendMessage(Q message) {
                super.sendMessage((Q) identified(message));
            }
        };
    }

    private static Object identified(Object message) {
        if (message instanceof AnnounceIntentRequest request && !request.hasCorrelationId()) {
            return request.toBuilder().setCorrelationId(UUID.randomUUID().toString()).build();
        }
        if (message instanceof PreActionRequest request
                && request.hasAnnouncement()
                && !request.getAnnouncement().hasCorrelationId()) {
            var action = request.toBuilder();
            action.getAnnouncementBuilder().setCorrelationId(UUID.randomUUID().toString());
            return action.build();
        }
        if (message instanceof RecordDecisionRequest request && !request.hasRequestId()) {
            return request.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
        }
        if (message instanceof RecordThoughtRequest request && !request.hasRequestId()) {
            return request.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
        }
        if (message instanceof ReviewDecisionRequest request && !request.hasRequestId()) {
            return request.toBuilder().setRequestId(UUID.randomUUID().toString()).build();
        }
        return message;
    }
}
