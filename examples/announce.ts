// Announce an action, check it against the guardrails and record it. Usage: node announce.js [reviewed]
import { Client, Stakes } from "cstp-client";
import { JournalService } from "cstp-client/gen/cstp/v1/journal_pb";

const [action, stakes] = ["Deploy the auth service to production", Stakes.HIGH];
const facts = { affectsProduction: true, codeReviewCompleted: process.argv.includes("reviewed"), ciPassing: true };

const client = new Client(process.env.CSTP_TARGET!, { token: process.env.CSTP_TOKEN });
try {
  const { similarDecisions } = await client.announceIntent({ intent: action, stakes, metadata: facts });
  for (const { title } of similarDecisions) console.log("similar:", title);
  const { allowed, violations } = await client.checkGuardrails({ action: { description: action, stakes, context: facts } });
  for (const { message } of violations) console.log("blocked:", message);
  if (!allowed) process.exit(3);
  const decision = { title: action, stakes, confidence: 0.8 };
  const recorded = await client.service(JournalService).recordDecision({ decision });
  console.log("recorded:", recorded.decision?.id);
} finally {
  client.close();
}
