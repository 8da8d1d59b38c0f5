"""Clients, one script each, run as processes of their own (`benchmarks.support.peers.run_client`)."""
