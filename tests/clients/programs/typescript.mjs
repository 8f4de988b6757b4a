// The official TypeScript client, 1.x or 2.x, as an application would use it.
//   node typescript.mjs FOLDER_WITH_NODE_MODULES VERSION COMMAND...
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, version, command, ...args] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/x.js`));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const [{ Client }, { StdioClientTransport }] = await Promise.all(
  version === "1"
    ? [load("@modelcontextprotocol/sdk/client/index.js"), load("@modelcontextprotocol/sdk/client/stdio.js")]
    : [load("@modelcontextprotocol/client"), load("@modelcontextprotocol/client/stdio")],
);
const client = new Client({ name: "test", version: "1" });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
const call = async (name, args) => {
  try {
    const { content, isError, structuredContent } = await client.callTool({ name, arguments: args });
    return { texts: content.map((block) => block.text ?? block.type), isError: isError ?? false, structuredContent };
  } catch (error) {
    return { thrown: String(error) };
  }
};
const calls = JSON.parse(process.env.CALLS);
const { tools } = await client.listTools();
const results = [];
for (const [name, args] of calls) results.push(await call(name, args));
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), results }));
await client.close();
