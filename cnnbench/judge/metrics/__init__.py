"""What is judged: metrics, verdicts, the policy, and which facts must be alike."""
