"""The engine: one loop around the scheduler and the model, and the ways to reach it.

loop.py drives a core through a channel; worker.py and process.py are the two ends of a process of its
own, thread.py keeps the loop in this process, and engine.py is the library's face.
"""
