// A client of MCP whose tool calls are guarded, connected to a server in this process. CSTP_TARGET says where the server of
// CSTP is, CSTP_TOKEN who asks, CSTP_CA_FILE whom to trust.
import { readFileSync } from "node:fs";
import { Client as McpClient, InMemoryTransport } from "@modelcontextprotocol/client";
import { McpServer } from "@modelcontextprotocol/server";
import { z } from "zod";
import { Client, Stakes } from "../src/index.js";
import { guardToolCalls } from "../src/mcp.js";

const server = new McpServer({ name: "operations", version: "1.0.0" });
server.registerTool(
  "deploy",
  {
    description: "Deploys a service to production.",
    inputSchema: z.object({ service: z.string(), reviewed: z.boolean() }),
  },
  async ({ service }) => ({ content: [{ type: "text", text: `${service} is live` }] }),
);

const { CSTP_TARGET: target = "grpc://localhost:50051", CSTP_TOKEN: token, CSTP_CA_FILE: file } = process.env;
const cstp = new Client(target, { token, rootCertificates: file && readFileSync(file) });

const client = guardToolCalls(cstp, new McpClient({ name: "agent", version: "1.0.0" }), {
  category: "deployment",
  tools: {
    deploy: ({ service, reviewed }) => ({
      intent: `Deploy the ${service} service to production`,
      stakes: Stakes.HIGH,
      metadata: { affectsProduction: true, codeReviewCompleted: reviewed === true, ciPassing: true },
    }),
  },
});

const [near, far] = InMemoryTransport.createLinkedPair();
await Promise.all([server.connect(far), client.connect(near)]);
try {
  for (const reviewed of [false, true]) {
    const { content, isError } = await client.callTool({ name: "deploy", arguments: { service: "auth", reviewed } });
    for (const part of content) if (part.type === "text") console.log(isError ? "blocked:" : "done:", part.text);
  }
} finally {
  await client.close();
  cstp.close();
}
