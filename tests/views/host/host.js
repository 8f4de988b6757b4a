import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

// A host: AppBridge, and a sandbox proxy on another origin. `mcp` (the test's) speaks with the real server.
const views = (window.views = []);
window.approved = 0;
document.getElementById("yes").onclick = () => window.approved++;

const CAPABILITIES = { openLinks: {}, downloadFile: {}, serverTools: {}, serverResources: {}, message: {}, logging: {} };

window.openView = async ({ html, policy, tool, theme = "light", without = [] }) => {
  const box = document.createElement("div");
  box.className = "call";
  box.append(Object.assign(document.createElement("p"), { textContent: tool.name }));
  const frame = document.createElement("iframe");
  box.append(frame);
  document.getElementById("chat").append(box);
  frame.src = `http://localhost:${window.sandboxPort}/sandbox.html?policy=${policy}`;
  const capabilities = Object.fromEntries(Object.entries(CAPABILITIES).filter(([name]) => !without.includes(name)));
  const context = { theme, availableDisplayModes: ["inline", "fullscreen"], toolInfo: { id: 1, tool } };
  const bridge = new AppBridge(null, { name: "test-host", version: "1" }, capabilities, { hostContext: context });
  const view = { bridge, frame, heights: [], downloads: [], calls: [], reads: [], links: [], messages: [], resultAt: 0 };
  views.push(view);
  bridge.oncalltool = async (params) => (view.calls.push(params), { content: [] });
  bridge.onreadresource = async ({ uri }) => {
    view.reads.push(uri);
    const found = JSON.parse(await window.mcp(uri));
    if (found.error) throw new Error(found.error);
    return found;
  };
  bridge.onopenlink = async (params) => (view.links.push(params), {});
  bridge.onmessage = async (params) => (view.messages.push(params), {});
  bridge.ondownloadfile = async ({ contents }) => (view.downloads.push(...contents.map(({ resource }) => resource)), {});
  bridge.onrequestdisplaymode = async ({ mode }) => ({ mode });
  bridge.onsizechange = ({ height }) => {
    view.heights.push(height);
    if (height != null) frame.style.height = `${height}px`;
  };
  const ready = new Promise((resolve) => {
    bridge.onsandboxready = () => bridge.sendSandboxResourceReady({ html });
    bridge.oninitialized = resolve;
  });
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  await ready;
  return views.length - 1;
};
window.giveInput = (number, args) => views[number].bridge.sendToolInput({ arguments: args });
window.giveResult = (number, result) => {
  views[number].resultAt = performance.timeOrigin + performance.now();
  views[number].frame.scrollIntoView({ block: "end" });
  return views[number].bridge.sendToolResult(result);
};
window.said = (number) => {
  const { heights, downloads, calls, reads, links, messages, resultAt } = views[number];
  return { heights, downloads, calls, reads, links, messages, resultAt };
};
