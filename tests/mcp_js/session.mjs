// A session with the official TypeScript client: `node session.mjs MODE` with what to connect to in the environment.
// Prints one JSON object; tests/agents/mcp_server/interop.py reads it.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const { MCP_URL, MCP_TOKEN, MCP_COMMAND } = process.env;

function connection() {
  if (MCP_URL) {
    const headers = { Authorization: `Bearer ${MCP_TOKEN}` };
    return new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit: { headers } });
  }
  const [command, ...args] = JSON.parse(MCP_COMMAND);
  return new StdioClientTransport({ command, args, env: { ...process.env } });
}

const mode = process.argv[2];
const client = new Client({ name: 'cstp-tests', version: '1.0.0' }, { versionNegotiation: { mode } });
await client.connect(connection());
const { tools } = await client.listTools();
const result = await client.callTool({
  name: 'look_before_acting',
  arguments: { intent: 'Deploy the shop', metadata: { affectsProduction: true } },
});
const { resources } = await client.listResources();
const inputs = await client.readResource({ uri: 'cstp://rulebook/inputs' });
const failed = await client.callTool({ name: 'check_action', arguments: { description: 'x', stakes: 'enormous' } });
console.log(
  JSON.stringify({
    version: client.getNegotiatedProtocolVersion(),
    tools: tools.map((tool) => tool.name),
    text: result.content[0].text,
    allowed: result.structuredContent.allowed,
    resources: resources.map((resource) => resource.uri),
    inputs: JSON.parse(inputs.contents[0].text).inputs.map((input) => input.name),
    failed: failed.isError,
  }),
);
await client.close();
