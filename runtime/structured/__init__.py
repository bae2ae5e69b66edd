"""Output held to a form: from what a request demands to which tokens may come next.

    constraint   what a request demands, as plain data
    schema       JSON Schema as the engine behind this package takes it
    patterns     what the engine makes of members named by patterns, put right
    calls        grammars of outputs that call functions
    translate    any constraint as that engine's grammar text
    estimate     which constraints cannot take long to compile
    checker      processes that translate and try out, and may be killed
    checking     asking them
    grammar      a compiled constraint, and matchers that walk it token by token
    threads      threads that keep no process from ending
    service      compiling off the step loop: a bounded cache, no work done twice

Knows tokens as bytes; nothing of requests, schedules or logits.
"""
