"""The guardrail engine: rulebooks, expressions and their evaluation."""
