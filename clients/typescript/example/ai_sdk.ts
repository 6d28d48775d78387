// An agent of the AI SDK whose tools are guarded. It needs no model: a scripted one deploys, is told why it may not, and
// deploys once it has been reviewed. CSTP_TARGET says where the server is, CSTP_TOKEN who asks, CSTP_CA_FILE whom to trust.
import { readFileSync } from "node:fs";
import { generateText, stepCountIs, tool } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { z } from "zod";
import { guardTools } from "../src/ai_sdk.js";
import { Client, Stakes } from "../src/index.js";

const USAGE = {
  inputTokens: { total: 0, noCache: 0, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 0, text: 0, reasoning: 0 },
};

/** What the model does, step by step: the inputs with which it calls the tool. */
const script = [
  { service: "auth", reviewed: false },
  { service: "auth", reviewed: true },
];

const model = new MockLanguageModelV3({
  doGenerate: async () => {
    const input = script.shift();
    const call = { type: "tool-call" as const, toolCallId: `call-${script.length}`, toolName: "deploy" };
    return {
      content: input ? [{ ...call, input: JSON.stringify(input) }] : [{ type: "text", text: "It is deployed." }],
      finishReason: { unified: input ? "tool-calls" : "stop", raw: undefined },
      usage: USAGE,
      warnings: [],
    };
  },
});

const { CSTP_TARGET: target = "grpc://localhost:50051", CSTP_TOKEN: token, CSTP_CA_FILE: file } = process.env;
const client = new Client(target, { token, rootCertificates: file && readFileSync(file) });

const tools = guardTools(
  client,
  {
    deploy: tool({
      description: "Deploys a service to production.",
      inputSchema: z.object({ service: z.string(), reviewed: z.boolean() }),
      execute: async ({ service }) => `${service} is live`,
    }),
  },
  {
    category: "deployment",
    tools: {
      deploy: ({ service, reviewed }) => ({
        intent: `Deploy the ${service} service to production`,
        stakes: Stakes.HIGH,
        metadata: { affectsProduction: true, codeReviewCompleted: reviewed, ciPassing: true },
      }),
    },
  },
);

try {
  const { steps } = await generateText({ model, tools, prompt: "Deploy the auth service", stopWhen: stepCountIs(5) });
  for (const part of steps.flatMap(({ content }) => content)) {
    if (part.type === "tool-error") console.log("blocked:", (part.error as Error).message);
    if (part.type === "tool-result") console.log("done:", part.output);
    if (part.type === "text") console.log("model:", part.text);
  }
} finally {
  client.close();
}
