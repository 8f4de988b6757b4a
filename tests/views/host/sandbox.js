// The sandbox proxy: loads the view's document under this page's policy, and passes messages between it and the host.
const inner = document.createElement("iframe");
inner.setAttribute("sandbox", "allow-scripts allow-same-origin allow-forms");
document.body.append(inner);
addEventListener("message", ({ source, data }) => {
  if (source === inner.contentWindow) parent.postMessage(data, "*");
  else if (source !== parent) return;
  else if (data?.method !== "ui/notifications/sandbox-resource-ready") inner.contentWindow.postMessage(data, "*");
  else {
    inner.contentDocument.open();
    inner.contentDocument.write(data.params.html);
    inner.contentDocument.close();
  }
});
parent.postMessage({ jsonrpc: "2.0", method: "ui/notifications/sandbox-proxy-ready", params: {} }, "*");
