// A session with the MCP client of the AI SDK, over standard streams with the command in the environment.
// Prints one JSON object; tests/agents/mcp_server/interop.py reads it.

import { createMCPClient } from '@ai-sdk/mcp';
import { Experimental_StdioMCPTransport } from '@ai-sdk/mcp/mcp-stdio';

const [command, ...args] = JSON.parse(process.env.MCP_COMMAND);
const client = await createMCPClient({
  transport: new Experimental_StdioMCPTransport({ command, args, env: { ...process.env } }),
});
const tools = await client.tools();
const result = await tools.look_before_acting.execute(
  { intent: 'Deploy the shop', metadata: { affectsProduction: true } },
  { toolCallId: '1', messages: [] },
);
console.log(JSON.stringify({ tools: Object.keys(tools), text: result.content[0].text }));
await client.close();
