// Command example announces an intent and prints the verdict.
//
// CSTP_TARGET says where the server is, CSTP_TOKEN who calls, and CSTP_CA_FILE whose certificates are trusted.
package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.org/cstp"
	cstpv1 "example.org/cstp/gen/cstp/v1"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	metadata, err := structpb.NewStruct(map[string]any{"affectsProduction": true, "codeReviewCompleted": false})
	if err != nil {
		return err
	}
	answer, err := client.AnnounceIntent(ctx, &cstpv1.AnnounceIntentRequest{
		Intent:     "Deploy the auth service to production",
		Category:   proto.String("deployment"),
		Stakes:     cstpv1.Stakes_STAKES_HIGH,
		Confidence: proto.Float64(0.8),
		Metadata:   metadata,
	})
	if err != nil {
		return err
	}
	report(answer)
	return nil
}

func connect() (*cstp.Client, error) {
	target := os.Getenv("CSTP_TARGET")
	if target == "" {
		return nil, fmt.Errorf("set CSTP_TARGET to the address of a server, for instance grpc://localhost:50051")
	}
	options := cstp.Options{Token: os.Getenv("CSTP_TOKEN")}
	if file := os.Getenv("CSTP_CA_FILE"); file != "" {
		roots, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		options.RootCertificates = roots
	}
	return cstp.New(target, options)
}

func report(answer *cstpv1.AnnounceIntentResponse) {
	verdict := answer.GetGuardrailStatus()
	switch {
	case verdict == nil:
		fmt.Println("no verdict: the server is configured to give none")
	case verdict.GetAllowed():
		fmt.Println("allowed")
	default:
		fmt.Println("blocked")
	}
	for _, violation := range verdict.GetViolations() {
		fmt.Printf("  %s: %s\n", violation.GetGuardrailId(), violation.GetMessage())
		if suggestion := violation.GetSuggestion(); suggestion != "" {
			fmt.Printf("    %s\n", suggestion)
		}
	}
	for _, decision := range answer.GetSimilarDecisions() {
		fmt.Printf("similar, %.2f: %s\n", decision.GetScore(), decision.GetTitle())
	}
}
