"""Jobs: a run is a plan, passes of repeatable tasks, and one folder of notes from which it resumes.

Start with `run`: the passes and their tasks. `notes` has what tasks have done, `record` the plan of an unfinished run.
"""
