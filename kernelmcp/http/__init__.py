"""Requests that come over HTTP: who asks, may they, is there room; and the ASGI application behind that."""
