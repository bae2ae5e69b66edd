"""Real agent programs on real data, each measured against what an infinite cache would find.

    react, tau_bench    recorded episodes, replayed turn by turn
    tree_of_thought     recorded searches, replayed: proposals, and three judgements of each state
    self_consistency    many answers to one question, and a vote
    json_extraction     arguments of functions, as JSON that fits their schemas

`program` says what a program is, `replay` how a model is made to follow a recording, `target` where it
runs, `ideal` what could have been found, `measure` runs and counts.
"""
