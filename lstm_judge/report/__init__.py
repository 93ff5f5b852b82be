"""Reports to hand over: one HTML file that needs nothing else, a short form in Markdown, and JUnit
for CI.

`facts` collects what a report says; `html` and `short` write it.
"""
