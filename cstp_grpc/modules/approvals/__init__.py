"""Approvals by people of what guardrails let nobody do without one."""
