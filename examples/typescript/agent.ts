/**
 * An agent in TypeScript: a model, the official MCP SDK, and the loop between them.
 *
 * The agent starts `kernelmcp`, hands its tools to the model, and does what the model asks for until the model answers
 * in words. Variables stay between the calls. Pictures go back to the model, and are saved beside you.
 *
 * Install kernelmcp so that `kernelmcp --version` works, then, with Node 22.18 or newer (it runs TypeScript as it is):
 *
 *     export ANTHROPIC_API_KEY=...
 *     cd examples/typescript && npm install
 *     node agent.ts "Simulate 1000 throws of two dice and plot the sums."
 *
 * It runs with version 1 of the SDK (`@modelcontextprotocol/sdk`) as well, if its imports are changed; only the type of
 * `callTool`'s result is a wider one there.
 */

import { existsSync, writeFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { type CallToolResult, Client } from "@modelcontextprotocol/client";
import { StdioClientTransport, getDefaultEnvironment } from "@modelcontextprotocol/client/stdio";

const TASK = "Work out the first 20 Fibonacci numbers in Python, then plot them.";
const MODEL = process.env.MODEL ?? "claude-sonnet-5-5";
const MAX_STEPS = 20;

type Block = Anthropic.TextBlockParam | Anthropic.ImageBlockParam;
type Picture = Extract<CallToolResult["content"][number], { type: "image" }>;

/** Write a picture as it is: code that a model wrote made it, so nothing here decodes it. */
function save(picture: Picture): void {
  const kind = picture.mimeType === "image/png" ? "png" : "jpg";
  let number = 1;
  while (existsSync(`picture-${number}.${kind}`)) number += 1;
  const file = `picture-${number}.${kind}`;
  writeFileSync(file, Buffer.from(picture.data, "base64"));
  console.log(`[saved ${file}]`);
}

/** A tool's result as the model reads it. Links are for programs: the text names each file already. */
function forModel(result: CallToolResult): Block[] {
  return result.content.flatMap((block): Block[] => {
    // The API refuses blank text, as of an empty file.
    if (block.type === "text" && block.text.trim()) return [{ type: "text", text: block.text }];
    if (block.type !== "image") return [];
    const media_type = block.mimeType as Anthropic.Base64ImageSource["media_type"];
    return [{ type: "image", source: { type: "base64", media_type, data: block.data } }];
  });
}

async function run(kernel: Client, task: string): Promise<string> {
  const anthropic = new Anthropic();
  const tools = (await kernel.listTools()).tools.map(
    ({ name, description, inputSchema }): Anthropic.Tool => ({ name, description, input_schema: inputSchema }),
  );
  const system = kernel.getInstructions(); // what the server says about its tools
  const messages: Anthropic.MessageParam[] = [{ role: "user", content: task }];
  for (let step = 0; step < MAX_STEPS; step += 1) {
    const answer = await anthropic.messages.create({ model: MODEL, max_tokens: 8192, system, messages, tools });
    messages.push({ role: "assistant", content: answer.content });
    const calls = answer.content.filter((block) => block.type === "tool_use");
    if (calls.length === 0) {
      return answer.content.map((block) => (block.type === "text" ? block.text : "")).join("");
    }
    const results: Anthropic.ToolResultBlockParam[] = [];
    for (const call of calls) {
      console.log(`> ${call.name}: ${JSON.stringify(call.input)}`);
      // Code that raises is a result too: isError is set, and the text has the traceback.
      const result = await kernel.callTool({ name: call.name, arguments: call.input as Record<string, unknown> });
      result.content.filter((block) => block.type === "image").forEach(save);
      results.push({
        type: "tool_result",
        tool_use_id: call.id,
        content: forModel(result),
        is_error: result.isError ?? false,
      });
    }
    messages.push({ role: "user", content: results });
  }
  return `[stopped after ${MAX_STEPS} steps]`;
}

// The SDK passes on PATH, HOME and the like. Your settings go with them; the key of your model does not.
const settings = Object.entries(process.env).filter(([name]) => name.startsWith("KERNELMCP_"));
const env = { ...getDefaultEnvironment(), ...(Object.fromEntries(settings) as Record<string, string>) };
const kernel = new Client({ name: "typescript-agent", version: "1.0.0" });
const args = ["serve", "--log-level", "warning"];
await kernel.connect(new StdioClientTransport({ command: "kernelmcp", args, env }));
try {
  console.log(await run(kernel, process.argv[2] ?? TASK));
} finally {
  await kernel.close();
}
