"""Announce an action, check it against the guardrails and record it. Usage: announce.py [reviewed]"""

import os
import sys

from cstp_grpc.client import CstpClient

ACTION = "Deploy the auth service to production"
facts = {"affectsProduction": True, "codeReviewCompleted": "reviewed" in sys.argv, "ciPassing": True}

with CstpClient(os.environ["CSTP_TARGET"], os.environ["CSTP_TOKEN"]) as client:
    for decision in client.announce_intent(ACTION, stakes="high", metadata=facts).similar_decisions:
        print("similar:", decision.title)
    verdict = client.check_guardrails(ACTION, stakes="high", context=facts)
    for violation in verdict.violations:
        print("blocked:", violation.message)
    if not verdict.allowed:
        sys.exit(3)
    print("recorded:", client.record_decision(ACTION, stakes="high", confidence=0.8).id)
