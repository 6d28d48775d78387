"""Delivery of notifications to the webhooks of agents."""
