"""The figures of a report: pure functions from tables to Plotly figures, and what each shows in words."""
