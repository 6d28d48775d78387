// Announce an action, check it against the guardrails and record it. Usage: go run announce.go [reviewed]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"slices"

	"example.org/cstp"
	cstpv1 "example.org/cstp/gen/cstp/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const action, stakes = "Deploy the auth service to production", cstpv1.Stakes_STAKES_HIGH

func main() {
	ctx, reviewed := context.Background(), slices.Contains(os.Args, "reviewed")
	client := must(cstp.New(os.Getenv("CSTP_TARGET"), cstp.Options{Token: os.Getenv("CSTP_TOKEN")}))
	defer client.Close()
	facts := must(structpb.NewStruct(map[string]any{"affectsProduction": true, "codeReviewCompleted": reviewed, "ciPassing": true}))

	announced := must(client.AnnounceIntent(ctx, &cstpv1.AnnounceIntentRequest{Intent: action, Stakes: stakes, Metadata: facts}))
	for _, decision := range announced.GetSimilarDecisions() {
		fmt.Println("similar:", decision.GetTitle())
	}
	asked := &cstpv1.Action{Description: action, Stakes: stakes, Context: facts}
	verdict := must(client.CheckGuardrails(ctx, &cstpv1.CheckGuardrailsRequest{Action: asked}))
	for _, violation := range verdict.GetViolations() {
		fmt.Println("blocked:", violation.GetMessage())
	}
	if !verdict.GetAllowed() {
		os.Exit(3)
	}
	decision := &cstpv1.DecisionContent{Title: action, Stakes: stakes, Confidence: proto.Float64(0.8)}
	recorded := must(client.Journal.RecordDecision(ctx, &cstpv1.RecordDecisionRequest{Decision: decision}))
	fmt.Println("recorded:", recorded.GetDecision().GetId())
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
