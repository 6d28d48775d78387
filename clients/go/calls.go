package cstp

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	cstpv1 "example.org/cstp/gen/cstp/v1"
)

// calls gives every call its token, its deadline and its errors.
type calls struct {
	target   string
	bearer   string
	timeouts map[string]time.Duration
}

func (c *calls) unary(
	ctx context.Context, method string, request, answer any,
	connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	ctx, cancel := c.begin(ctx, method)
	defer cancel()
	return c.explain(ctx, invoke(ctx, method, identified(request), answer, connection, options...))
}

// identified returns a request with the id by which the server recognises a repetition, where its type has one.
func identified(request any) any {
	switch given := request.(type) {
	case *cstpv1.AnnounceIntentRequest:
		if given.CorrelationId == nil {
			given = proto.CloneOf(given)
			given.CorrelationId = proto.String(rand.Text())
			return given
		}
	case *cstpv1.PreActionRequest:
		if given.Announcement != nil && given.Announcement.CorrelationId == nil {
			given = proto.CloneOf(given)
			given.Announcement.CorrelationId = proto.String(rand.Text())
			return given
		}
	case *cstpv1.RecordDecisionRequest:
		if given.RequestId == nil {
			given = proto.CloneOf(given)
			given.RequestId = proto.String(rand.Text())
			return given
		}
	case *cstpv1.RecordThoughtRequest:
		if given.RequestId == nil {
			given = proto.CloneOf(given)
			given.RequestId = proto.String(rand.Text())
			return given
		}
	case *cstpv1.ReviewDecisionRequest:
		if given.RequestId == nil {
			given = proto.CloneOf(given)
			given.RequestId = proto.String(rand.Text())
			return given
		}
	}
	return request
}

func (c *calls) stream(
	ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn,
	method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := c.begin(ctx, method)
	opened, err := open(ctx, description, connection, method, options...)
	if err != nil {
		defer cancel()
		return nil, c.explain(ctx, err)
	}
	return &stream{ClientStream: opened, calls: c, ctx: ctx, cancel: cancel, many: description.ServerStreams}, nil
}

// begin returns the context of a call; a deadline of its caller is the only one that it has.
func (c *calls) begin(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	if c.bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.bearer)
	}
	ctx = context.WithValue(ctx, failureKey{}, &failure{})
	if timeout, limited := c.timeouts[method]; limited {
		if _, chosen := ctx.Deadline(); !chosen {
			return context.WithTimeout(ctx, timeout)
		}
	}
	return context.WithCancel(ctx)
}

// explain returns the error that a caller gets for one of gRPC.
func (c *calls) explain(ctx context.Context, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if status.Code(err) == codes.Canceled && errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	if last, kept := ctx.Value(failureKey{}).(*failure); kept && status.Code(err) == codes.DeadlineExceeded {
		err = last.or(err)
	}
	return errorOf(status.Convert(err), c.target)
}

// stream explains the errors of a stream.
type stream struct {
	grpc.ClientStream
	calls  *calls
	ctx    context.Context
	cancel context.CancelFunc
	many   bool
}

func (s *stream) SendMsg(message any) error {
	return s.calls.explain(s.ctx, s.ClientStream.SendMsg(message))
}

func (s *stream) RecvMsg(message any) error {
	err := s.calls.explain(s.ctx, s.ClientStream.RecvMsg(message))
	if err != nil || !s.many {
		s.cancel()
	}
	return err
}

// failure is what the last attempt of a call ended with.
type failure struct{ last atomic.Pointer[error] }

type failureKey struct{}

// or returns what the last attempt ended with where the deadline passed in the pause after it, and else err.
func (f *failure) or(err error) error {
	if last := f.last.Load(); last != nil && *last != nil {
		return *last
	}
	return err
}

// attempts keeps what the attempts of calls end with; gRPC tells only how the pause after them did.
type attempts struct{}

func (attempts) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if end, ended := event.(*stats.End); ended {
		if kept, ok := ctx.Value(failureKey{}).(*failure); ok {
			kept.last.Store(&end.Error)
		}
	}
}

func (attempts) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (attempts) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (attempts) HandleConn(context.Context, stats.ConnStats) {}
