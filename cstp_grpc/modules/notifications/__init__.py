"""Notices about approvals, blocked actions and failed verifications, for webhooks of the configuration."""
