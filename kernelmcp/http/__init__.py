"""Requests over HTTP: authentication, authorization and limits; and the ASGI application behind them."""
