package cstp

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cstpv1 "example.org/cstp/gen/cstp/v1"
)

const (
	domain       = "cstp"
	reasonPrefix = "ERROR_REASON_"
	requestID    = "requestId"
)

// Reason is why a call failed. It is an error itself, for errors.Is.
type Reason cstpv1.ErrorReason

// String returns the reason as the contract writes it, for instance RATE_LIMITED.
func (r Reason) String() string {
	return strings.TrimPrefix(cstpv1.ErrorReason(r).String(), reasonPrefix)
}

// Error returns the same as String.
func (r Reason) Error() string { return r.String() }

// Violation is what is wrong with one field of a request.
type Violation struct {
	Field       string // Field is its path as the contract writes it, for instance filters.min_confidence.
	Description string
}

// Block is a guardrail that forbids what was asked for.
type Block struct {
	GuardrailID string
	Name        string
	Message     string
}

// Error is a failed call. errors.Is tells its reason: errors.Is(err, cstp.ErrRateLimited).
type Error struct {
	Reason     Reason
	Message    string
	Violations []Violation       // Violations name the fields that are wrong.
	Blocks     []Block           // Blocks are the guardrails that forbid it.
	RetryDelay time.Duration     // RetryDelay is how long to wait before trying again; 0 where none is known.
	Metadata   map[string]string // Metadata adds details by name; `reason` is one that this client does not know.
	RequestID  string            // RequestID finds the call in the server's log; empty where no server answered.

	status *status.Status
}

// Error returns the reason and the message.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Reason }

// GRPCStatus returns the status of gRPC with all its details, so that status.Code and its like understand the error.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// invalid returns the error of a field that is wrong before anything is called.
func invalid(field, description string) *Error {
	message := field + ": " + description
	return &Error{
		Reason:     ErrInvalidArgument,
		Message:    message,
		Violations: []Violation{{field, description}},
		status:     status.New(codes.InvalidArgument, message),
	}
}

// errorOf returns the error that a status of the server at target describes.
func errorOf(found *status.Status, target string) *Error {
	failed := &Error{Metadata: map[string]string{}, status: found}
	explained := false
	for _, detail := range found.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if explained = detail.GetDomain() == domain; explained {
				failed.Reason = reasonOf(detail, failed.Metadata)
			}
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				failed.Violations = append(failed.Violations, Violation{violation.GetField(), violation.GetDescription()})
			}
		case *errdetails.PreconditionFailure:
			for _, block := range detail.GetViolations() {
				failed.Blocks = append(failed.Blocks, Block{block.GetType(), block.GetSubject(), block.GetDescription()})
			}
		case *errdetails.RetryInfo:
			failed.RetryDelay = detail.GetRetryDelay().AsDuration()
		}
	}
	if !explained {
		failed.Reason, failed.Message = describeStatus(found, target)
		return failed
	}
	failed.Message, failed.RequestID = found.Message(), failed.Metadata[requestID]
	return failed
}

// reasonOf returns the reason that a server gives and copies its metadata; one that is not known is kept there.
func reasonOf(info *errdetails.ErrorInfo, metadata map[string]string) Reason {
	maps.Copy(metadata, info.GetMetadata())
	if reason, known := cstpv1.ErrorReason_value[reasonPrefix+info.GetReason()]; known {
		return Reason(reason)
	}
	if _, taken := metadata["reason"]; !taken {
		metadata["reason"] = info.GetReason()
	}
	return ErrInternal
}

// describeStatus returns what a status means that gives no reason: gRPC itself answered, or something between.
func describeStatus(found *status.Status, target string) (Reason, string) {
	message := fmt.Sprintf("%s answered %s: %s", target, found.Code(), found.Message())
	switch found.Code() {
	case codes.ResourceExhausted:
		return reasonForExhaustion(found.Message()), message
	case codes.DeadlineExceeded:
		message = target + " did not answer in time"
	case codes.Unavailable:
		message = fmt.Sprintf("No server answers at %s: %s", target, found.Message())
	}
	if reason, known := bareReasons[found.Code()]; known {
		return reason, message
	}
	return ErrInternal, message
}

// reasonForExhaustion returns what exhaustion without details means; only its text tells messages beyond a limit, which are no
// passing failure, from the server's limit on calls in progress.
func reasonForExhaustion(message string) Reason {
	switch {
	case strings.Contains(message, "Received message larger"):
		return ErrInvalidArgument
	case strings.Contains(message, "message larger"):
		return ErrInternal
	}
	return bareReasons[codes.ResourceExhausted]
}
