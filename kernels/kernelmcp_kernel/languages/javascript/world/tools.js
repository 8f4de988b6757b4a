// `callMCPTool` and `servers`: tools of the user's other MCP servers. What they answer is JSON of a stranger's.
(host, world) => {
  "use strict";
  const { define } = world;

  class ToolError extends Error {
    constructor(kind, message) {
      super(message);
      this.name = this.kind = kind;
    }
  }
  const bytes = ({ data, blob, mimeType, uri }) => ({ mimeType, uri, bytes: new Uint8Array(host.encode(data ?? blob, "base64")) });
  const part = (block) => {
    if (block.type === "text") return block.text;
    if (block.type === "image" || block.type === "audio") return bytes(block);
    if (block.type !== "resource") return block;
    return block.resource.blob === undefined ? block.resource.text : bytes(block.resource);
  };
  const valueOf = (result, name) => {
    let parts;
    try {
      if (Object.hasOwn(result, "structuredContent") && !result.isError) return { value: result.structuredContent };
      const { content } = result;
      if (result.isError) {
        const texts = content.filter((block) => block.type === "text").map((block) => block.text);
        return { error: `${name}: ${texts.join("\n") || "it failed without a reason"}` };
      }
      parts = content.map(part);
    } catch (error) {
      return { error: `${name}: its answer is not a tool result (${error.message})` };
    }
    return { value: parts.length === 1 ? parts[0] : parts };
  };
  const parsed = (line, name) => {
    try {
      return JSON.parse(line);
    } catch (error) {
      throw new ToolError("ToolError", `${name}: its answer is not readable JSON (${error.message})`);
    }
  };
  const call = async (name, args = {}) => {
    const text = JSON.stringify(args);
    if (typeof args !== "object" || args === null || text === undefined) throw new TypeError(`${name}: the arguments are an object`);
    const reply = JSON.parse(await host.callTool(String(name), text));
    if (reply.error) throw new ToolError(reply.error.kind, reply.error.message);
    const { value, error } = valueOf(reply.line === undefined ? reply.result : parsed(reply.line, name), name);
    if (error) throw new ToolError("ToolError", error);
    return value;
  };
  // What is not there is undefined, `await servers.crm` asks for a `then`; or a function that says so.
  const named = (names, make, missing = () => undefined) =>
    new Proxy(Object.create(null), {
      get: (_, name) => {
        if (typeof name !== "string") return undefined;
        if (names().includes(name)) return make(name);
        return name === "then" || name === "toJSON" || name in Object.prototype ? undefined : missing(name);
      },
      has: (_, name) => names().includes(name),
      ownKeys: () => names(),
      getOwnPropertyDescriptor: (_, name) =>
        names().includes(name) ? { value: make(name), enumerable: true, configurable: true } : undefined,
    });
  const namesOf = (server) => JSON.parse(host.toolNames(server));
  const servers = named(
    () => [...namesOf(""), "search"],
    (server) => {
      if (server === "search") return (words) => host.searchTools(String(words));
      const tool = (name) => (args) => call(`${server}.${name}`, args);
      return named(() => namesOf(server), tool, tool);
    },
  );
  define("callMCPTool", call);
  define("servers", servers);
};
