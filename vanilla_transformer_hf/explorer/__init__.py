"""
A page on which every number of a model can be seen: `vanilla-transformer explore FOLDER`.

`explorer.py` lists the questions that the page asks, `requests.py` their fields, `results.py` the fields of the
answers.
"""
