// Announces an intent and prints what came back. CSTP_TARGET says where, CSTP_TOKEN who, CSTP_CA_FILE whom to trust.
import { readFileSync } from "node:fs";
import { Client, CstpError, Stakes } from "../src/index.js";

const { CSTP_TARGET: target = "grpc://localhost:50051", CSTP_TOKEN: token, CSTP_CA_FILE: file } = process.env;

try {
  const client = new Client(target, { token, rootCertificates: file && readFileSync(file) });
  try {
    const answer = await client.announceIntent({
      intent: "Deploy the auth service to production",
      category: "deployment",
      stakes: Stakes.HIGH,
      confidence: 0.8,
      metadata: { affectsProduction: true, codeReviewCompleted: false },
    });
    const verdict = answer.guardrailStatus;
    console.log(verdict?.allowed ? "allowed" : "not allowed");
    for (const violation of verdict?.violations ?? []) {
      console.log(`  ${violation.name}: ${violation.message}`);
      if (violation.suggestion) console.log(`    ${violation.suggestion}`);
    }
    for (const decision of answer.similarDecisions) {
      console.log(`  similar (${decision.score.toFixed(2)}): ${decision.title}`);
    }
  } finally {
    client.close();
  }
} catch (error) {
  console.error(error instanceof CstpError ? `${error.reason}: ${error.message}` : String(error));
  process.exitCode = 1;
}
