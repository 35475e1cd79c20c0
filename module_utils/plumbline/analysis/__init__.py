"""Controller side only: experiments, plans, statistics, verdicts and reports."""
