"""Approvals by people of actions for which guardrails require one."""
