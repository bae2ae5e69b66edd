"""ramet.lang owns programs: ordinary Python functions over a state that grows, branches and joins.

    nodes      what can be added to a state: text, roles, gen, select, tool loops
    state      what a program holds; adding never waits, reading does
    executor   one per state: does what was added, in order, on the language's own event loop
    session    one per run: its states, their failures, its end
    program    @function: run, arun, run_batch, stream, bind, trace
    content    a state's tokens and the text behind them; chat writes roles with the model's template
    backends   where tokens come from: an engine in this process, a ramet server, an OpenAI server

It knows no tensor and no block; the runtime is imported when a backend is made, not before.
"""
