"""What predictions and costs amount to: metrics, tables of results, data sets by role."""
