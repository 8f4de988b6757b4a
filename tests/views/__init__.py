"""Views in a browser: a host with the public AppBridge, the policies of three hosts, and the real server."""
