package cstp_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"example.org/cstp"
	cstpv1 "example.org/cstp/gen/cstp/v1"
	liaisonv1 "example.org/cstp/gen/liaison/v1"
)

// patience is how long a call of a test may take that says nothing of time.
const patience = time.Minute

// table holds the cases and where the servers are, as clients/cases.yaml describes them.
type table struct {
	Servers          map[string]string
	Tokens           map[string]string
	RootCertificates string
	Cases            []testCase
}

type testCase struct {
	step
	Name      string
	Server    string
	Token     string
	TimeoutMs int
	Attempts  int
	Steps     []step
}

type step struct {
	Call     string
	Request  json.RawMessage
	Requests []json.RawMessage
	Take     int
	Answer   map[string]any
	Answers  []any
	Error    *wantedError
}

type wantedError struct {
	Reason       string
	Violations   []string
	Blocks       []string
	RetryDelayMs []float64
	Metadata     map[string]string
	RequestID    *bool
	Message      string
}

func TestTheClientHasEveryServiceOfTheContract(t *testing.T) {
	client, err := cstp.New("grpc://127.0.0.1:1", cstp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var stubs []string
	for i, fields := 0, reflect.ValueOf(client).Elem(); i < fields.NumField(); i++ {
		if !fields.Field(i).IsNil() {
			stubs = append(stubs, fields.Type().Field(i).Type.Name())
		}
	}
	services := 0
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(file.Package()), "grpc.") {
			return true // gRPC's own, such as that of health.
		}
		for i := range file.Services().Len() {
			services++
			if name := string(file.Services().Get(i).Name()) + "Client"; !slices.Contains(stubs, name) {
				t.Errorf("the client has no %s", name)
			}
		}
		return true
	})
	if services < 10 {
		t.Errorf("there are only %d services in the contract", services)
	}
}

func TestCases(t *testing.T) {
	served := readTable(t)
	for _, each := range served.Cases {
		t.Run(each.Name, func(t *testing.T) {
			client := served.client(t, each)
			steps := each.Steps
			if len(steps) == 0 {
				steps = []step{each.step}
			}
			for _, step := range steps {
				ctx, cancel := contextOf(t, each)
				answer, err := perform(ctx, t, client, step)
				cancel()
				judge(t, step, answer, err)
			}
		})
	}
}

func readTable(t *testing.T) *table {
	t.Helper()
	path := os.Getenv("CSTP_CASES")
	if path == "" {
		t.Fatal("CSTP_CASES names no table of cases: run `make test-clients` at the root of the repository")
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	served := &table{}
	if err := json.Unmarshal(content, served); err != nil {
		t.Fatal(err)
	}
	if len(served.Cases) == 0 {
		t.Fatalf("there are no cases in %s", path)
	}
	return served
}

func (served *table) client(t *testing.T, tested testCase) *cstp.Client {
	t.Helper()
	roots, err := os.ReadFile(served.RootCertificates)
	if err != nil {
		t.Fatal(err)
	}
	target, found := served.Servers[or(tested.Server, "plain")]
	token, known := served.Tokens[or(tested.Token, "alice")]
	if !found || !known {
		t.Fatalf("there is no server %q or no token %q", tested.Server, tested.Token)
	}
	return open(t, target, cstp.Options{Token: token, RootCertificates: roots, Attempts: tested.Attempts})
}

func open(t *testing.T, target string, options cstp.Options) *cstp.Client {
	t.Helper()
	client, err := cstp.New(target, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func contextOf(t *testing.T, tested testCase) (context.Context, context.CancelFunc) {
	if tested.TimeoutMs > 0 {
		return context.WithTimeout(t.Context(), time.Duration(tested.TimeoutMs)*time.Millisecond)
	}
	// No deadline: that of the service config holds.
	return context.WithCancel(t.Context())
}

// perform makes the call of a step and returns its answer, or its answers, in the JSON form of Protobuf.
func perform(ctx context.Context, t *testing.T, client *cstp.Client, step step) (any, error) {
	t.Helper()
	switch step.Call {
	case "announceIntent":
		return printed(client.AnnounceIntent(ctx, read(t, step.Request, &cstpv1.AnnounceIntentRequest{})))
	case "queryDecisions":
		return printed(client.QueryDecisions(ctx, read(t, step.Request, &cstpv1.QueryDecisionsRequest{})))
	case "checkGuardrails":
		return printed(client.CheckGuardrails(ctx, read(t, step.Request, &cstpv1.CheckGuardrailsRequest{})))
	case "importDecisions":
		var requests []*cstpv1.ImportDecisionsRequest
		for _, request := range step.Requests {
			requests = append(requests, read(t, request, &cstpv1.ImportDecisionsRequest{}))
		}
		return printed(client.ImportDecisions(ctx, slices.Values(requests)))
	case "recordDecision":
		return printed(client.Journal.RecordDecision(ctx, read(t, step.Request, &cstpv1.RecordDecisionRequest{})))
	case "reviewDecision":
		return printed(client.Journal.ReviewDecision(ctx, read(t, step.Request, &cstpv1.ReviewDecisionRequest{})))
	case "recordThought":
		return printed(client.Journal.RecordThought(ctx, read(t, step.Request, &cstpv1.RecordThoughtRequest{})))
	case "preAction":
		return printed(client.PreActions.PreAction(ctx, read(t, step.Request, &cstpv1.PreActionRequest{})))
	case "watchEvents":
		return watch(ctx, t, client, read(t, step.Request, &liaisonv1.WatchEventsRequest{}), step.Take)
	}
	t.Fatalf("there is no call %q", step.Call)
	return nil, nil
}

// printed returns an answer in the JSON form of Protobuf, with all fields that have no presence.
func printed(answer proto.Message, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	content, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(answer)
	if err != nil {
		return nil, err
	}
	var value any
	return value, json.Unmarshal(content, &value)
}

func watch(
	ctx context.Context, t *testing.T, client *cstp.Client, request *liaisonv1.WatchEventsRequest, take int,
) (any, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answers := []any{}
	for event, err := range client.WatchEvents(ctx, request) {
		answer, err := printed(event, err)
		if err != nil {
			return nil, err
		}
		if answers = append(answers, answer); len(answers) == take {
			break
		}
	}
	return answers, nil
}

func read[M proto.Message](t *testing.T, content json.RawMessage, message M) M {
	t.Helper()
	if err := protojson.Unmarshal(content, message); err != nil {
		t.Fatal(err)
	}
	return message
}

func judge(t *testing.T, step step, answer any, err error) {
	t.Helper()
	if step.Error != nil {
		judgeError(t, step.Error, err)
		return
	}
	var wanted any = step.Answer
	if step.Answers != nil {
		wanted = step.Answers
	}
	if err != nil {
		t.Fatalf("%s failed: %v", step.Call, err)
	}
	if !holds(wanted, answer) {
		t.Fatalf("%s answered %v, which does not hold %v", step.Call, answer, wanted)
	}
}

func judgeError(t *testing.T, wanted *wantedError, err error) {
	t.Helper()
	var failed *cstp.Error
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want an error with the reason %s", err, wanted.Reason)
	}
	if failed.Reason.String() != wanted.Reason || !strings.Contains(failed.Message, wanted.Message) {
		t.Errorf("got %v, want %s: %s", failed, wanted.Reason, wanted.Message)
	}
	fields := []string{}
	for _, violation := range failed.Violations {
		fields = append(fields, violation.Field)
	}
	slices.Sort(fields)
	if slices.Sort(wanted.Violations); !slices.Equal(slices.Compact(fields), wanted.Violations) {
		t.Errorf("got violations of %v, want %v", fields, wanted.Violations)
	}
	blocks := []string{}
	for _, block := range failed.Blocks {
		if blocks = append(blocks, block.GuardrailID); block.Name == "" || block.Message == "" {
			t.Errorf("got %v, want it with a name and a message", block)
		}
	}
	if !slices.Equal(blocks, wanted.Blocks) {
		t.Errorf("got the blocks %v, want %v", blocks, wanted.Blocks)
	}
	for name, value := range wanted.Metadata {
		if failed.Metadata[name] != value {
			t.Errorf("got %q as %s, want %q", failed.Metadata[name], name, value)
		}
	}
	if wanted.RequestID != nil && (failed.RequestID != "") != *wanted.RequestID {
		t.Errorf("got the request id %q, want one: %t", failed.RequestID, *wanted.RequestID)
	}
	if bounds := wanted.RetryDelayMs; bounds != nil {
		if delay := float64(failed.RetryDelay) / float64(time.Millisecond); delay < bounds[0] || delay > bounds[1] {
			t.Errorf("got a delay of %v ms, want one within %v", delay, bounds)
		}
	}
}

// holds tells whether an answer holds what is wanted, as clients/cases.yaml says.
func holds(wanted, given any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		object, is := given.(map[string]any)
		for name, value := range wanted {
			found, there := object[name]
			is = is && there && holds(value, found)
		}
		return is
	case []any:
		list, is := given.([]any)
		return is && slices.EqualFunc(wanted, list, holds)
	case string:
		return wanted == "$any" && given != nil || wanted == given
	}
	return wanted == given
}

func or(value, absent string) string {
	if value == "" {
		return absent
	}
	return value
}

// scripted answers calls as a test says; what it does not say is not implemented.
type scripted struct {
	cstpv1.UnimplementedCstpServiceServer
	check func(context.Context) error
}

func (s *scripted) AnnounceIntent(
	_ context.Context, request *cstpv1.AnnounceIntentRequest,
) (*cstpv1.AnnounceIntentResponse, error) {
	return &cstpv1.AnnounceIntentResponse{CorrelationId: request.GetCorrelationId()}, nil
}

func (s *scripted) CheckGuardrails(
	ctx context.Context, _ *cstpv1.CheckGuardrailsRequest,
) (*cstpv1.CheckGuardrailsResponse, error) {
	return &cstpv1.CheckGuardrailsResponse{Allowed: true}, s.check(ctx)
}

// serve runs a server for the length of a test and returns its target.
func serve(t *testing.T, check func(context.Context) error) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cstpv1.RegisterCstpServiceServer(server, &scripted{check: check})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func TestTellsTheLastFailureWhereTheDeadlinePassesInThePauseAfterIt(t *testing.T) {
	target := serve(t, func(ctx context.Context) error {
		grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "600000"))
		return status.Error(codes.Unavailable, "come back later")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := open(t, target, cstp.Options{}).CheckGuardrails(ctx, &cstpv1.CheckGuardrailsRequest{})
	if !errors.Is(err, cstp.ErrUnavailable) || !strings.Contains(err.Error(), "come back later") {
		t.Fatalf("got %v, want what the server said", err)
	}
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("got the status %s, want UNAVAILABLE", status.Code(err))
	}
}

func TestRepeatsTheLongestRequestsThatServersTake(t *testing.T) {
	calls := 0
	target := serve(t, func(context.Context) error {
		if calls++; calls == 1 {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	request := &cstpv1.CheckGuardrailsRequest{Action: &cstpv1.Action{Description: strings.Repeat("x", 4_000_000)}}
	if _, err := open(t, target, cstp.Options{}).CheckGuardrails(t.Context(), request); err != nil {
		t.Fatal(err)
	}
}

func TestGivesCallsADeadlineWhereTheirCallerGaveNone(t *testing.T) {
	left := make(chan time.Duration, 2)
	target := serve(t, func(ctx context.Context) error {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil
	})
	client := open(t, target, cstp.Options{})
	if _, err := client.CheckGuardrails(t.Context(), &cstpv1.CheckGuardrailsRequest{}); err != nil {
		t.Fatal(err)
	}
	if given := <-left; given <= 0 || given > 30*time.Second {
		t.Errorf("the server was given %s, want the 30 s of the service config", given)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.CheckGuardrails(ctx, &cstpv1.CheckGuardrailsRequest{}); err != nil {
		t.Fatal(err)
	}
	if given := <-left; given < 30*time.Minute {
		t.Errorf("the server was given %s, want the hour of the caller", given)
	}
}

func TestSendsACorrelationIDWithoutChangingTheRequest(t *testing.T) {
	client := open(t, serve(t, nil), cstp.Options{})
	request := &cstpv1.AnnounceIntentRequest{Intent: "Rename a variable"}
	seen := map[string]bool{}
	for range 2 {
		answer, err := client.AnnounceIntent(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		seen[answer.GetCorrelationId()] = true
	}
	if len(seen) != 2 || seen[""] || request.CorrelationId != nil {
		t.Fatalf("the server was sent %v for %v", seen, request)
	}
}

func TestReturnsCancelledToTheCallerThatCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	target := serve(t, func(called context.Context) error {
		cancel()
		<-called.Done()
		return nil
	})
	_, err := open(t, target, cstp.Options{}).CheckGuardrails(ctx, &cstpv1.CheckGuardrailsRequest{})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want context.Canceled", err)
	}
}

func TestRefusesWhatItCannotUse(t *testing.T) {
	for name, tried := range map[string]struct {
		target  string
		options cstp.Options
		field   string
	}{
		"another scheme":  {"ftp://localhost:1", cstp.Options{}, "target"},
		"no port":         {"grpc://localhost", cstp.Options{}, "target"},
		"a path":          {"grpc://localhost:1/rpc", cstp.Options{}, "target"},
		"a user":          {"grpc://me:secret@localhost:1", cstp.Options{}, "target"},
		"no certificates": {"grpcs://localhost:1", cstp.Options{RootCertificates: []byte("none")}, "rootCertificates"},
		"a token in two":  {"grpc://localhost:1", cstp.Options{Token: "one two"}, "token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cstp.New(tried.target, tried.options)
			var failed *cstp.Error
			if !errors.As(err, &failed) || !errors.Is(err, cstp.ErrInvalidArgument) || failed.Violations[0].Field != tried.field {
				t.Fatalf("got %v, want a violation of %s", err, tried.field)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%v tells the password", err)
			}
		})
	}
}
