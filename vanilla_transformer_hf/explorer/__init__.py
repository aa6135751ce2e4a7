"""
A page on which every number of a model can be seen: `vanilla-transformer explore FOLDER`.

`explorer.py` lists the questions of the page, `requests.py` their fields, `results.py` the fields of the
answers.
"""
