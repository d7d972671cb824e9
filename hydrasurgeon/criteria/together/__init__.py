"""Members chosen together: candidates, what each answers, and the combination that is worth most within a budget."""
