// Package cstp calls CSTP servers: it announces intents, queries past decisions and checks guardrails.
package cstp

import (
	"context"
	"io"
	"iter"

	"google.golang.org/grpc"

	cstpv1 "example.org/cstp/gen/cstp/v1"
	intentlayerv1 "example.org/cstp/gen/intent_layer/v1"
	liaisonv1 "example.org/cstp/gen/liaison/v1"
)

// Options say how a client calls. With the zero value it has no token and trusts the authorities of the system.
type Options struct {
	Token            string            // Token says who calls.
	RootCertificates []byte            // RootCertificates, in PEM, replace the authorities of the system.
	Attempts         int               // Attempts is how often a call is tried at the most; 0 leaves it to the service config.
	DialOptions      []grpc.DialOption // DialOptions are what else gRPC should do, for instance tracing.
}

// Client calls a server, from any number of goroutines.
//
// Its methods and those of the stubs fail with an *Error, or with context.Canceled where their own caller cancelled
// them. The deadline of a context covers all attempts; without one, the service config says how long a call may take.
// AnnounceIntent and RecordDecision make up the id of a request that has none, so that what is sent again is done once.
type Client struct {
	cstpv1.CstpServiceClient
	Access      cstpv1.AccessServiceClient
	Admin       cstpv1.AdminServiceClient
	Approvals   cstpv1.ApprovalServiceClient
	Audit       cstpv1.AuditServiceClient
	Calibration cstpv1.CalibrationServiceClient
	Erasure     cstpv1.ErasureServiceClient
	Guardrails  cstpv1.GuardrailServiceClient
	Intents     cstpv1.IntentServiceClient
	Journal     cstpv1.JournalServiceClient
	PreActions  cstpv1.PreActionServiceClient
	Sessions    cstpv1.SessionContextServiceClient
	Status      cstpv1.StatusServiceClient
	Tasks       cstpv1.TaskServiceClient
	IntentLayer intentlayerv1.IntentLayerServiceClient
	Liaison     liaisonv1.LiaisonServiceClient

	connection *grpc.ClientConn
}

// New returns a client of the server at grpc://host:port, or just host:port; with TLS at grpcs://host:port or
// https://host[:port]. It connects with the first call. It fails with an *Error where the target or an option is wrong.
func New(target string, options Options) (*Client, error) {
	address, transport, err := transportOf(target, options.RootCertificates)
	if err != nil {
		return nil, err
	}
	config, timeouts, err := readConfig(serviceConfig, options.Attempts)
	if err != nil {
		return nil, err
	}
	bearer, err := authorization(options.Token)
	if err != nil {
		return nil, err
	}
	calls := &calls{target: target, bearer: bearer, timeouts: timeouts}
	dialOptions := append(connecting(),
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(config),
		grpc.WithDisableServiceConfig(), // What DNS says of it is not the contract's.
		grpc.WithChainUnaryInterceptor(calls.unary),
		grpc.WithChainStreamInterceptor(calls.stream),
		grpc.WithStatsHandler(attempts{}),
	)
	if options.Attempts == 1 {
		dialOptions = append(dialOptions, grpc.WithDisableRetry())
	} else if options.Attempts > 1 {
		dialOptions = append(dialOptions, grpc.WithMaxCallAttempts(options.Attempts)) // gRPC's own bound is 5.
	}
	connection, err := grpc.NewClient(address, append(dialOptions, options.DialOptions...)...)
	if err != nil {
		return nil, invalid("target", err.Error())
	}
	return &Client{
		CstpServiceClient: cstpv1.NewCstpServiceClient(connection),
		Access:            cstpv1.NewAccessServiceClient(connection),
		Admin:             cstpv1.NewAdminServiceClient(connection),
		Approvals:         cstpv1.NewApprovalServiceClient(connection),
		Audit:             cstpv1.NewAuditServiceClient(connection),
		Calibration:       cstpv1.NewCalibrationServiceClient(connection),
		Erasure:           cstpv1.NewErasureServiceClient(connection),
		Guardrails:        cstpv1.NewGuardrailServiceClient(connection),
		Intents:           cstpv1.NewIntentServiceClient(connection),
		Journal:           cstpv1.NewJournalServiceClient(connection),
		PreActions:        cstpv1.NewPreActionServiceClient(connection),
		Sessions:          cstpv1.NewSessionContextServiceClient(connection),
		Status:            cstpv1.NewStatusServiceClient(connection),
		Tasks:             cstpv1.NewTaskServiceClient(connection),
		IntentLayer:       intentlayerv1.NewIntentLayerServiceClient(connection),
		Liaison:           liaisonv1.NewLiaisonServiceClient(connection),
		connection:        connection,
	}, nil
}

// ImportDecisions sends decisions as they come and returns what became of each.
func (c *Client) ImportDecisions(
	ctx context.Context, requests iter.Seq[*cstpv1.ImportDecisionsRequest], options ...grpc.CallOption,
) (*cstpv1.ImportDecisionsResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Journal.ImportDecisions(ctx, options...)
	if err != nil {
		return nil, err
	}
	for request := range requests {
		if stream.Send(request) != nil {
			break // The answer says why.
		}
	}
	return stream.CloseAndRecv()
}

// WatchEvents returns the events of chat sessions as they come. It does so once the server watches, so that nothing
// that happens from then on is missed. Leaving the loop over them ends the stream, as does the end of the context.
func (c *Client) WatchEvents(
	ctx context.Context, request *liaisonv1.WatchEventsRequest, options ...grpc.CallOption,
) iter.Seq2[*liaisonv1.WatchEventsResponse, error] {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.Liaison.WatchEvents(ctx, request, options...)
	if err == nil {
		_, err = stream.Header()
	}
	return func(yield func(*liaisonv1.WatchEventsResponse, error) bool) {
		defer cancel()
		for err == nil {
			var event *liaisonv1.WatchEventsResponse
			if event, err = stream.Recv(); err == nil && !yield(event, nil) {
				return
			}
		}
		if err != io.EOF {
			yield(nil, err)
		}
	}
}

// Close ends the calls in progress and closes the connection.
func (c *Client) Close() error {
	return c.connection.Close()
}
